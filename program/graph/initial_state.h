// The seeded initial state: a function of (program, seed) alone. It is the first checkpoint of a
// run. Every element has its own draw (Philox: stream kStreamInit + the variable's index among the
// parameters, and the element's flat index). The formulas are in docs/method/numerics.md, the names
// of the kinds in graph/initializer.h.
//
//   std::vector<Tensor> weights = initial_state(program, scenario.seed);
//   weights[i]                                   // value of program.state[i]
#pragma once

#include <vector>

#include "program/base/tensor.h"
#include "program/graph/program.h"

namespace twinrun {

// One tensor per Program::state entry, in order.
std::vector<Tensor> initial_state(const Program& program, uint64_t seed);

}  // namespace twinrun
