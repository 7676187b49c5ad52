// When a value is last read, and which values need not be computed, or not in every step or on
// every core. Executors free and reuse memory by it; fusion and memory plans build on it.
//
//   auto last = last_uses(program);      // last[id] == graph.size() for outputs and next states
#pragma once

#include <vector>

#include "program/graph/program.h"

namespace twinrun {

// For every value the index of the last op that reads it; its own index if no op does; graph.size()
// if it outlives the step.
std::vector<ValueId> last_uses(const Program& program);

// Values that neither an output nor a next state depends on: executors skip them.
std::vector<bool> dead_values(const Program& program);

// Values that depend on no input, state or random op: executors compute them once.
std::vector<bool> constant_values(const Program& program);

// Values that may differ between replicas: those that depend on an input per core, except through
// an all-reduce. Executors compute the others once for all replicas.
std::vector<bool> varying_values(const Program& program);

// Sum of flops() over the live ops of one step of one replica.
double step_flops(const Program& program);

}  // namespace twinrun
