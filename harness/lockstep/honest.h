// Honest engines of a declared arithmetic, as the null of a statistic: what their results look like on the same inputs.
#pragma once

#include "harness/lockstep/bias.h"

namespace twinrun {

HonestElements honest_engines(const Capabilities& declared);

}  // namespace twinrun
