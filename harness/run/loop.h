// What the host does between two steps, beside feeding them: where its loops end, and what happens there.
//
//   engine.step(step, states, inputs, outputs);  end_of_loop(scenario, states, step);
//   const HostLoop loop(scenario, program, engine_name);
//   if (loop.due(scenario.train.eval_every, step + 1)) ...      // at a loop's end where the run loops
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "backends/core/backend.h"
#include "scenarios/scenario.h"

namespace twinrun {

// At the end of a loop (tpu.iterations_per_loop, the last step) every core restarts from replica 0's variables, as on the real
// stack. `step`: the one just done.
void end_of_loop(const Scenario& scenario, States& states, int64_t step);

// The loops of a run: on the real stack a loop is one call of the device, and the host does nothing before it returns.
class HostLoop {
 public:
  // Runs on several cores and those of the engine `tpu` loop by tpu.iterations_per_loop. One core of any other engine is the CPU
  // stack, whose host sees every step.
  HostLoop(const Scenario& scenario, int cores, std::string_view engine);
  // After `done` steps, is that due which is asked for every so many (0: never)? At a loop's end: if it was asked for since the last one.
  bool due(int64_t every, int64_t done) const;
  // May a run be stopped after `done` steps? The device does not return from the middle of a loop.
  bool returns(int64_t done) const { return !loops() || done % iterations_ == 0; }
  bool loops() const { return iterations_ > 0; }
  int64_t iterations() const { return iterations_; }
  // What is said of a stop that comes before step `step` of a run of `last`, inside a loop.
  std::string stopping(int64_t step, int64_t last) const;
  // What is not carried out when it is asked for, in a line for people; "" where everything is.
  std::string note(const TrainSpec& train) const;

 private:
  int64_t iterations_;  // 0: none
};

}  // namespace twinrun
