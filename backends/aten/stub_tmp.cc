#include "backends/aten/definitions.h"
namespace twinrun::aten {
#define S(x) std::span<const Definition> x##_definitions() { return {}; }
 S(indexing) S(pooling) S(embedding)
}
