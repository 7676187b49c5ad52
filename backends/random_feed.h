// Draws the values of a program's random ops on our CPU reference, for an engine that takes them as
// arguments instead of drawing them itself (backends/exec).
//
//   RandomFeed random;
//   TWINRUN_RETURN_IF_ERROR(random.prepare(program, threads));
//   auto drawn = random.draw(step, states, inputs);   // (*drawn)[i][replica]: op random.ops()[i]
#pragma once

#include "backends/core/backend.h"

namespace twinrun {

class RandomFeed {
 public:
  Status prepare(const Program& program, int threads);
  const std::vector<ValueId>& ops() const { return ops_; }  // in program order
  // `states` is the state before the step. It is not changed.
  Result<std::vector<std::vector<Tensor>>> draw(int64_t step, const States& states,
                                                const StepInputs& inputs);

 private:
  std::vector<ValueId> ops_;
  std::unique_ptr<Engine> engine_;  // nullptr if the program has no random ops
};

}  // namespace twinrun
