// The learning rate of a step, from a scenario's [optimizer]: an input of the training step, so it is
// computed here once, in binary64 without a C library (program/base/math64.h), and rounded once.
//
//   const float rate = learning_rate(scenario.optimizer, step);     // step from 0
#pragma once

#include <cstdint>

#include "scenarios/scenario.h"

namespace twinrun {

// Below warmup_steps: lr * step / warmup_steps. Then the schedule, its steps counted from the end of the
// warm-up. docs/numerics.md section 9 has the formulas.
float learning_rate(const OptimizerConfig& config, int64_t step);

}  // namespace twinrun
