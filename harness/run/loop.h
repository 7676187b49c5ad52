// What the host does between two steps, besides feeding them: where its training loops end, and
// what happens there. Used by train (run.h).
//
//   engine.step(step, states, inputs, outputs);  end_of_loop(scenario, states, step);
//   const HostLoop loop(scenario, program.sharding.cores, engine_name);
//   if (loop.due(scenario.train.eval_every, step + 1)) ...  // in loops: only at the end of one
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backends/core/backend.h"
#include "scenarios/scenario.h"

namespace twinrun {

// At the end of a loop (tpu.iterations_per_loop, and the last step) every core restarts from
// replica 0's variables, as on the real stack. `step` is the one just done.
void end_of_loop(const Scenario& scenario, States& states, int64_t step);

// The loops of a run. On the real stack a loop is one call of the device, and the host does nothing
// before it returns.
class HostLoop {
 public:
  // Runs on several cores, and runs of the engine `tpu`, use loops of tpu.iterations_per_loop
  // steps. One core of any other engine stands for the CPU stack, whose host sees every step.
  HostLoop(const Scenario& scenario, int cores, std::string_view engine);
  // Whether an action that is configured for every `every` steps (0: never) is to be done after
  // `done` steps. With loops it is done at the end of a loop, if a multiple of `every` was reached
  // since the previous loop's end.
  bool expected(int64_t every, int64_t done) const;
  // Whether a run can be stopped after `done` steps: the device does not return from the middle of
  // a loop.
  bool returns(int64_t done) const { return !loops() || done % iterations_ == 0; }
  bool loops() const { return iterations_ > 0; }
  int64_t iterations() const { return iterations_; }
  // The message for a stop before step `step` of a run of `last` steps, inside a loop.
  std::string stopping(int64_t step, int64_t last) const;
  // A line that lists the keys of `train` whose actions have to wait for the end of a loop; "" if
  // there are none.
  std::string note(const TrainSpec& train) const;

 private:
  int64_t iterations_;  // 0: no loops
};

}  // namespace twinrun
