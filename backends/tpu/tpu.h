// `tpu`: the emulated engine. bf16 operands (1, 3 or 6 passes) with f32 accumulation in the contract's block order, denormals
// flushed, N replicas. With precision "f32" it is the degenerate setting: the reference's arithmetic, bit for bit.
#pragma once

#include <memory>

#include "backends/core/backend.h"

namespace twinrun {

std::unique_ptr<Backend> make_tpu_backend(const BackendOptions& options);

}  // namespace twinrun
