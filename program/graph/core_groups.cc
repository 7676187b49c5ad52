// Sums over groups of cores: each core adds its value to its group's row of an all-reduced table,
// then reads that row.
#include "program/graph/core_groups.h"

namespace twinrun {

ValueId sum_over_group(GraphBuilder b, ValueId x, ValueId replica_id, int cores,
                       CoreGroups groups) {
  if (groups.size < 1 || cores % groups.size != 0) {
    throw GraphError(b.graph().op(x).name + ": " + std::to_string(cores) +
                     " cores do not make groups of " + std::to_string(groups.size));
  }
  // The group is floor(r / size), computed as (r + 1/2) / size, truncated; with `strided` it is r
  // modulo the number of groups.
  const int count = cores / groups.size;
  const ValueId r = b.convert(replica_id, DType::kF32, "replica");
  const ValueId middle = b.binary_scalar(OpKind::kAdd, r, 0.5, "middle");
  const ValueId quotient =
      b.binary_scalar(OpKind::kDivide, middle, groups.strided ? count : groups.size, "quotient");
  ValueId group = b.convert(quotient, DType::kI32, "group");
  if (groups.strided) {
    const ValueId first = b.binary_scalar(OpKind::kMultiply, b.convert(group, DType::kF32, "round"),
                                          count, "first_of_round");
    group = b.convert(b.sub(r, first, "place_in_round"), DType::kI32, "strided_group");
  }
  const ValueId row = b.reshape(group, {1}, "row");
  const Dims dims = b.type(x).dims;
  Dims one = dims, all = dims;
  one.insert(one.begin(), 1);
  all.insert(all.begin(), count);
  const ValueId placed = b.scatter_add(row, b.reshape(x, one, "as_row"), all, "placed");
  return b.reshape(b.gather(b.all_reduce(placed), row, "own_group"), dims, "of_group");
}

ValueId replica_id_of(Program& program) {
  for (const Input& input : program.inputs) {
    if (input.name == "replica_id") return input.id;
  }
  const ValueId id = GraphBuilder(program.graph).parameter("replica_id", {DType::kI32, {}});
  program.inputs.push_back({"replica_id", id, true});
  return id;
}

int scaled_by(const Sharding& sharding) {
  return sharding.scaling == Scaling::kByGroup && sharding.reduction_groups.size > 0
             ? sharding.reduction_groups.size
             : sharding.cores;
}

}  // namespace twinrun
