// How much memory our own engines hold for a program on this machine while it trains, computed from
// the plans by which they run (fusion.h, memory_plan.h), without running it. Scratch memory of
// kernels, the data set and tensors that callers keep are not included.
//
//   plan_host(program).total();    // bytes
#pragma once

#include "program/graph/program.h"

namespace twinrun {

struct HostPlan {
  // Values that are not needed after the step: of the replicas that run together, what the others
  // carry from one all-reduce to the next, and what all have in common.
  int64_t arena = 0;
  // Once where all replicas have the same value, and twice where the new value cannot be written
  // over the old one.
  int64_t states = 0;
  int64_t outputs = 0, inputs = 0, constants = 0;
  int64_t total() const { return arena + states + outputs + inputs + constants; }
};

HostPlan plan_host(const Program& program);

}  // namespace twinrun
