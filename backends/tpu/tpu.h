// The `tpu` engine: an emulated TPU of N replicas. bf16 operands (1, 3 or 6 passes) with f32
// accumulation in the block order of docs/method/numerics.md, and denormals flushed. With precision
// "f32" its arithmetic is that of the reference, bit for bit.
#pragma once

#include <memory>

#include "backends/core/backend.h"

namespace twinrun {

std::unique_ptr<Backend> make_tpu_backend(const BackendOptions& options);

}  // namespace twinrun
