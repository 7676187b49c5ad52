#include "harness/honest.h"

namespace twinrun {

HonestElements honest_engines(const Capabilities&) { return {}; }

}  // namespace twinrun
