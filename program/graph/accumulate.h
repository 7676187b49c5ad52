// Gradient accumulation as graph code: the gradients of k steps make one update, at every k-th
// step. In the other steps every state that the update writes keeps its bits. training_step() uses
// it.
//
//   // grads become the mean (or sum) so far
//   const Accumulation a = begin_accumulation(program, parameters, grads);
//   append_update(program, parameters, grads, learning_rate);
//   end_accumulation(program, a);    // next = apply ? updated : old
//
// State: "accumulate/step" counts 0 ... k-1; "<parameter>.gradient_sum" starts at 0 and returns to
// 0.
#pragma once

#include "program/graph/program.h"

namespace twinrun {

struct Accumulation {
  ValueId apply = kNoValue;     // pred: this step ends with an update; kNoValue: every step does
  std::vector<ValueId> before;  // Program::state's next values, before the update
};

Accumulation begin_accumulation(Program& program, const std::vector<int>& parameters,
                                std::vector<ValueId>& grads);
void end_accumulation(Program& program, const Accumulation& accumulation);

}  // namespace twinrun
