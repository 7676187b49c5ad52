// The elementary functions compiled for AVX-512: eight binary64 at a time.
#include "backends/kernels/elementary_vectors.h"

namespace twinrun {

const ElementaryKernels kElementaryAvx512 = kVectors;

}  // namespace twinrun
