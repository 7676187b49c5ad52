// What our own engines hold for a program on this machine, while it trains: counted from the plans that they run by (fusion.h,
// memory_plan.h), without running. Kernels' scratch, the data set and what callers keep besides are not in it.
//
//   plan_host(program).total();    // bytes
#pragma once

#include "program/graph/program.h"

namespace twinrun {

struct HostPlan {
  int64_t arena = 0;  // of all replicas: what dies within the step
  int64_t states =
      0;  // once where all replicas have the same, and twice where the new value cannot be written over the old
  int64_t outputs = 0, inputs = 0, constants = 0;
  int64_t total() const { return arena + states + outputs + inputs + constants; }
};

HostPlan plan_host(const Program& program);

}  // namespace twinrun
