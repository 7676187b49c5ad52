// The `cpu` engine: the reference, whose bits docs/method/numerics.md defines. f32, one fma chain
// per dot output, denormals kept.
#pragma once

#include <memory>

#include "backends/core/backend.h"

namespace twinrun {

std::unique_ptr<Backend> make_cpu_backend(const BackendOptions& options);

}  // namespace twinrun
