// The steps of a training run: each is fed and run, and at the end of a loop of the host the cores
// restart from replica 0's variables. Used by all that repeats steps of a run; one_step.h runs
// single steps, which are compared as the step left them.
//
//   StepLoop steps(experiment, program, *engine, initial_states(experiment, program));
//   for (int64_t step = 0; step < last; ++step) TWINRUN_RETURN_IF_ERROR(steps.run(step, &probe));
//   steps.states;  steps.outputs;
#pragma once

#include <cstdint>

#include "harness/experiment/experiment.h"
#include "harness/run/run.h"

namespace twinrun {

// Runs the steps of `program` on an engine. Keeps references to its arguments.
class StepLoop {
 public:
  // `start`: the states before the first step.
  StepLoop(const Experiment& experiment, const Program& program, Engine& engine, States start);
  // Feeds and runs the step, shows it to the observer as the step left it, and ends the loop of the
  // host where one ends. `keep_before`: keep the state before the step even if the observer does
  // not need it. Errors: the batch cannot be read, or the engine fails.
  Status run(int64_t step, StepObserver* observer = nullptr, bool keep_before = false);
  PipelineCounters counters() const { return feed_.counters(); }

  States states;        // after the last step, and after end_of_loop
  States before;        // before the last step; empty where it was not kept
  StepInputs inputs;    // of the last step
  StepOutputs outputs;  // of the last step; the engine reuses their memory in the next

 private:
  const Experiment& experiment_;
  Engine& engine_;
  StepFeed feed_;
};

}  // namespace twinrun
