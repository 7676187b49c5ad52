// What the host does between two steps, beside feeding them.
//
//   engine.step(step, states, inputs, outputs);  end_of_loop(scenario, states, step);
#pragma once

#include "backends/backend.h"
#include "scenarios/scenario.h"

namespace twinrun {

// At the end of a loop (tpu.iterations_per_loop, the last step) every core restarts from replica 0's variables, as on the real
// stack. `step`: the one just done.
void end_of_loop(const Scenario& scenario, States& states, int64_t step);

}  // namespace twinrun
