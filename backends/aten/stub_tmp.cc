#include "backends/aten/definitions.h"
namespace twinrun::aten {
#define S(x) \
  std::span<const Definition> x##_definitions() { return {}; }
S(indexing)
S(creation) S(reduction) S(normalization) S(pooling) S(loss) S(attention) S(embedding) S(recurrent)
    S(optimizer) S(random)
}  // namespace twinrun::aten
