// Which elementwise ops an executor may evaluate together, block by block, in one pass over memory,
// and in which order the resulting units run. Between liveness and the interpreter; it changes what
// is stored, never a value.
//
//   // constant[id]: the executor computes it once, not in every step.
//   FusionPlan plan = plan_fusion(program, constant);
//   for (const FusionUnit& u : plan.order)
//     u.group >= 0 ? run_group(plan.groups[u.group]) : run_op(u.op);
//
// The ops of a group iterate over the same number of elements in row-major order. Broadcasts and
// reshapes are not ops of a group but ways to read an operand (Access), so they are computed only
// where something else reads them. A group may end in reductions over leading dimensions. Cheap
// values are recomputed in the group that reads them instead of being stored.
#pragma once

#include <cstdint>
#include <span>
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
  std::vector<FusedOp> ops;      // ascending; ops of kind kReduce end the group
  std::vector<ValueId> stored;   // ops whose results are read outside, and every reduction
  std::vector<ValueId> sources;  // values that are read from outside, once each
};

// Either a single op or a group.
struct FusionUnit {
  ValueId op = kNoValue;
  int group = -1;
};

struct FusionPlan {
  std::vector<FusionGroup> groups;
  // Without dead ops, parameters, and broadcasts that only groups read.
  std::vector<FusionUnit> order;
  // For each value: the index in `order` of its last reader, or of its own unit if there is none;
  // order.size() if it outlives the step; -1 if it is never stored.
  std::vector<int> last_use;

  // The values that a unit reads from outside, and those that it writes. Valid as long as the unit.
  std::span<const ValueId> read(const FusionUnit& unit, const Graph& graph) const;
  std::span<const ValueId> written(const FusionUnit& unit) const;
};

FusionPlan plan_fusion(const Program& program, const std::vector<bool>& constant);

// FusionPlan::last_use for memory: a reshape that is a separate unit shares its operand's memory,
// which is held as long as the reshape's result.
std::vector<int> held_until(const Graph& graph, const FusionPlan& plan);

// How a broadcast's or a reshape's result reads its operand; period 0 if an Access cannot express
// it.
Access access_of(const Graph& graph, ValueId id);

// For a reduction over leading dimensions: the number of results; 0 otherwise.
int64_t reduce_columns(const Graph& graph, ValueId id);

}  // namespace twinrun
