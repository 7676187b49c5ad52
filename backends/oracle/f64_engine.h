// `cpu:f64` as an engine: the same program with every f32 value held in binary64. It serves to
// compare what programs mean without the effects of rounding, for finite differences, and as a
// third opinion. It is about ten times slower than cpu. Its state is f64, in checkpoints too.
#pragma once

#include <memory>
#include <span>

#include "backends/core/backend.h"

namespace twinrun {

std::unique_ptr<Backend> make_f64_backend(const BackendOptions& options);

// One step of each program. What several of them compute is computed once; alike()
// (backends/oracle/replica_walk.h) says for which programs that is worth their memory.
Status f64_steps(std::span<const Program* const> programs, std::span<States> states,
                 std::span<const StepInputs> inputs, std::span<StepOutputs> outputs, int threads);

}  // namespace twinrun
