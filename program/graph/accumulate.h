// Gradient accumulation as graph code: the gradients of k steps make one update, at every k-th step. In between every state
// that the update writes keeps its bits.
//
//   const Accumulation a = begin_accumulation(program, parameters, grads);  // grads become the mean (or sum) so far
//   append_update(program, parameters, grads, learning_rate);
//   end_accumulation(program, a);                                           // next = apply ? updated : old
//
// State: "accumulate/step" counts 0 ... k-1; "<parameter>.gradient_sum" starts at 0 and returns there.
#pragma once

#include "program/graph/program.h"

namespace twinrun {

struct Accumulation {
  ValueId apply = kNoValue;     // pred: this step ends with an update; kNoValue: every one does
  std::vector<ValueId> before;  // Program::state's next values, before the update
};

Accumulation begin_accumulation(Program& program, const std::vector<int>& parameters,
                                std::vector<ValueId>& grads);
void end_accumulation(Program& program, const Accumulation& accumulation);

}  // namespace twinrun
