// The seeded initial state: a function of (program, seed) alone.
//   glorot_uniform  limit = sqrt(6 / (fan_in + fan_out)) (double, rounded to f32);  w[i] = (2 u - 1) * limit, one rounding,
//                   u = uniform(draw({seed, kStreamInit + v}, 0, 0, i)), v the variable's index among the parameters
//   constant        the value
//   copy            another variable's initial value (averaged weights start as the weights)
#pragma once

#include <vector>

#include "program/base/tensor.h"
#include "program/graph/program.h"

namespace twinrun {

// One tensor per Program::state entry, in order.
std::vector<Tensor> initial_state(const Program& program, uint64_t seed);

}  // namespace twinrun
