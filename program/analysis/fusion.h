// Which elementwise ops an executor may evaluate together, block by block, in one pass over memory, and in which order its
// units then run. Between liveness and the interpreter; it changes what is stored, never a value.
//
//   FusionPlan plan = plan_fusion(program, constant);      // constant[id]: computed once by the executor, not every step
//   for (const FusionUnit& u : plan.order) u.group >= 0 ? run_group(plan.groups[u.group]) : run_op(u.op);
//
// A group's ops walk the same number of elements in row-major order. Broadcasts and reshapes are not ops of a group but ways
// to read an operand (Access), so they are computed only where something else reads them. A group may end in reductions
// over leading dimensions. Cheap values are computed again in the group that reads them rather than stored.
#pragma once

#include <cstdint>
#include <vector>

#include "program/graph/program.h"

namespace twinrun {

// Element i of the operand is source[(i / inner) % period].
struct Access {
  ValueId source = kNoValue;
  int64_t inner = 1;
  int64_t period = 0;
  bool operator==(const Access&) const = default;
};

struct FusedOp {
  ValueId id = kNoValue;
  std::vector<Access> operands;
};

struct FusionGroup {
  int64_t elements = 0;
  std::vector<FusedOp> ops;      // ascending; kReduce ones are the group's ends
  std::vector<ValueId> stored;   // ops whose results are read outside; every reduction
  std::vector<ValueId> sources;  // what is read from outside, once each
};

struct FusionUnit {
  ValueId op = kNoValue;  // or
  int group = -1;
};

struct FusionPlan {
  std::vector<FusionGroup> groups;
  std::vector<FusionUnit>
      order;  // dead ops, parameters and broadcasts that only groups read are not in it
  std::vector<int>
      last_use;  // of a value: index of its last reader in `order`; its own; order.size() if it outlives
                 // the step; -1: never stored
};

FusionPlan plan_fusion(const Program& program, const std::vector<bool>& constant);

// FusionPlan::last_use by memory: a reshape that is a unit of its own shows its operand's, which is held as long.
std::vector<int> held_until(const Graph& graph, const FusionPlan& plan);

// How a broadcast's or a reshape's result reads its operand; period 0 if not as an Access can say.
Access access_of(const Graph& graph, ValueId id);

// For a reduction over leading dimensions: the number of results; 0 otherwise.
int64_t reduce_columns(const Graph& graph, ValueId id);

}  // namespace twinrun
