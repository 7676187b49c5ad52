// Feeds and runs the steps of a training run.
#include "harness/run/step_loop.h"

#include <utility>

#include "harness/run/loop.h"

namespace twinrun {

StepLoop::StepLoop(const Experiment& experiment, const Program& program, Engine& engine,
                   States start)
    : states(std::move(start)),
      experiment_(experiment),
      engine_(engine),
      feed_(experiment, program) {}

Status StepLoop::run(int64_t step, StepObserver* observer, bool keep_before) {
  inputs.clear();  // so that two batches are never held at once
  TWINRUN_ASSIGN(inputs, feed_.inputs(step));
  before = keep_before || (observer != nullptr && observer->needs_before(step)) ? states : States{};
  TraceSink* const sink =
      observer == nullptr ? nullptr : observer->begin_step(step, before, inputs);
  TWINRUN_RETURN_IF_ERROR(engine_.step(step, states, inputs, outputs, sink));
  if (observer != nullptr) observer->end_step(step, states, outputs);
  end_of_loop(experiment_.scenario, states, step);
  return Ok{};
}

}  // namespace twinrun
