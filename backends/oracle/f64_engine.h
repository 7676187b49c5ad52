// `cpu:f64` as an engine: the same program with every f32 value held in binary64. For meaning (what rounding cannot blur), finite
// differences and as the third opinion; about ten times slower than cpu. Its state is f64 and stays so in checkpoints.
#pragma once

#include <memory>

#include "backends/core/backend.h"

namespace twinrun {

std::unique_ptr<Backend> make_f64_backend(const BackendOptions& options);

}  // namespace twinrun
