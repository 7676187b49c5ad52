#include "backends/aten/definitions.h"
namespace twinrun::aten {
#define S(x) std::span<const Definition> x##_definitions() { return {}; }
S(movement) S(indexing) S(creation) S(reduction) S(product) S(normalization) S(pooling) S(loss) S(attention) S(embedding) S(recurrent) S(optimizer) S(random)
}
