// Values that replicas exchange: means over cores, and the rows of all replicas. All of it is built
// from all-reduces: each replica puts its rows into a tensor of zeros at its own position, so the
// sum gathers the rows (as TF's TPU models do: tpu/models, cross_replica_concat), and a group's
// statistics go into the group's row. Gradients follow from those of scatter_add, all_reduce and
// gather.
#include "program/graph/core_groups.h"
#include "program/graph/layers.h"

namespace twinrun {

ValueId Layers::replica_id() {
  if (replica_ == kNoValue) {
    replica_ = root_.parameter("replica_id", {DType::kI32, {}});
    program_.inputs.push_back({"replica_id", replica_, true});
  }
  return replica_;
}

// Shards are of equal size, so the mean of the cores' means is the mean over all.
ValueId Layers::mean_over_cores(ValueId statistic) {
  if (sharding_.cores == 1 || sharding_.batchnorm == BatchNormSync::kPerCore) return statistic;
  const int group = sharding_.batchnorm_group;
  if (group == 0 || group == sharding_.cores) return mean_over_all_cores(statistic);
  const std::string name = program_.graph.op(statistic).name;
  GraphBuilder b = GraphBuilder(program_.graph).derived(name, Phase::kForward);
  if (sharding_.cores % group != 0) {
    throw GraphError(name + ": " + std::to_string(sharding_.cores) +
                     " cores do not make groups of " + std::to_string(group));
  }
  const CoreGroups groups{group, sharding_.batchnorm_strided};
  const ValueId own = sum_over_group(b, statistic, replica_id(), sharding_.cores, groups);
  return b.binary_scalar(OpKind::kDivide, own, group, "mean_over_group");
}

// Core 0's value of a state: the sum over the cores of their values, with those of all but core 0
// multiplied by zero.
ValueId Layers::first_cores(ValueId held) {
  GraphBuilder b =
      GraphBuilder(program_.graph).derived(program_.graph.op(held).name, Phase::kUpdate);
  const ValueId r = b.convert(replica_id(), DType::kF32, "replica");
  const ValueId other = b.binary_scalar(OpKind::kMinimum, r, 1.0, "is_other");
  const ValueId first = b.binary_scalar(
      OpKind::kAdd, b.binary_scalar(OpKind::kMultiply, other, -1.0, "minus"), 1.0, "is_first");
  return b.all_reduce(b.mul(held, b.broadcast_scalar(first, held, "firsts"), "of_first"));
}

ValueId Layers::mean_over_all_cores(ValueId statistic) {
  GraphBuilder b =
      GraphBuilder(program_.graph).derived(program_.graph.op(statistic).name, Phase::kForward);
  return b.binary_scalar(OpKind::kDivide, b.all_reduce(statistic, "all_reduce"), sharding_.cores,
                         "mean_over_cores");
}

Layers::Moments Layers::own_moments(GraphBuilder b, const Dims& reduced, ValueId mean,
                                    int64_t count) {
  if (sharding_.variance == Sharding::Variance::kOnePass) {
    b = b.scope("own");
    return {mean, variance_of(b, mean_of_squares(b, reduced), mean), count};
  }
  const ValueId gap = b.sub(x_, b.broadcast_trailing(mean, x_, "own_mean_broadcast"), "own_centre");
  const ValueId squares = b.mul(gap, gap, "own_square");
  return {mean, b.reduce(squares, reduced, Reducer::kMean, "own_variance"), count};
}

// Shards are of equal size, so the variance over all cores is the mean of (own variance + squared
// distance of the own mean from the mean over all).
Layers::Moments Layers::moments_of_all(GraphBuilder b, const Moments& own) {
  const ValueId mean = mean_over_all_cores(own.mean);
  const ValueId gap = b.sub(own.mean, mean, "gap");
  const ValueId second = b.add(own.variance, b.mul(gap, gap, "gap_square"), "about_all");
  return {mean, mean_over_all_cores(second), own.count * sharding_.cores};
}

// Row numbers of this replica's samples among those of all replicas: replica * n + 0 .. n - 1.
ValueId Layers::global_rows(GraphBuilder b, int64_t n) {
  const ValueId first =
      b.binary_scalar(OpKind::kMultiply, replica_id(), static_cast<double>(n), "first_row");
  const ValueId rows = b.iota({n}, 0, DType::kI32, "row");
  return b.add(b.broadcast_scalar(first, rows, "first_rows"), rows, "rows");
}

ValueId Layers::gather_cores(const std::string& name, ValueId x) {
  GraphBuilder b = root_.scope(name + "/gather");
  Dims all = b.type(x).dims;
  const ValueId rows = global_rows(b, all[0]);
  all[0] *= sharding_.cores;
  return b.all_reduce(b.scatter_add(rows, x, all, "placed"));
}

ValueId Layers::own_rows(const std::string& name, ValueId x) {
  GraphBuilder b = root_.scope(name + "/own");
  return b.gather(x, global_rows(b, b.type(x).dims[0] / sharding_.cores), "rows_of_core");
}

}  // namespace twinrun
