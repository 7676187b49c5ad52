// The learning rate of a step, from a scenario's [optimizer]. It is an input of the training step:
// computed once, here, in binary64 without a C library (program/base/math64.h), and rounded once,
// so that all engines get the same bits.
//
//   const float rate = learning_rate(scenario.optimizer, step);     // step from 0
#pragma once

#include <cstdint>

#include "scenarios/scenario.h"

namespace twinrun {

// For steps below warmup_steps: lr * step / warmup_steps. Then the schedule, with steps counted
// from the end of the warm-up. docs/method/numerics.md section 9 has the formulas.
float learning_rate(const OptimizerConfig& config, int64_t step);

}  // namespace twinrun
