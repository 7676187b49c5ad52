// What sharding means, as a transform of the forward pass: per-replica shapes, all-reduced batch statistics.
#include "program/graph/program.h"

namespace twinrun {
namespace {

// Copies `forward` op by op; the outermost size of batched ops is scaled by new_batch / old_batch.
Program copy_forward(const Program& forward, int64_t new_batch, const Sharding& sharding) {
  Program out = forward;
  out.graph = Graph();
  out.batch = new_batch;
  out.sharding = sharding;
  const bool sync = forward.sharding.cores == 1 && sharding.cores > 1 &&
                    sharding.batchnorm == BatchNormSync::kSynced;
  std::vector<ValueId> renamed(static_cast<size_t>(forward.graph.size()), kNoValue);

  const auto scale = [&](int64_t size, const Op& op) {
    if (size % forward.batch != 0) {
      throw GraphError(op.name + ": outermost size " + std::to_string(size) +
                       " is no multiple of the batch " + std::to_string(forward.batch));
    }
    return size / forward.batch * new_batch;
  };

  for (ValueId id = 0; id < forward.graph.size(); ++id) {
    Op op = forward.graph.op(id);
    for (ValueId& operand : op.operands) operand = renamed[static_cast<size_t>(operand)];
    if (op.batched) {
      if (op.kind == OpKind::kParameter) op.type.dims[0] = scale(op.type.dims[0], op);
      if (!op.attrs.shape.empty()) op.attrs.shape[0] = scale(op.attrs.shape[0], op);
    }
    if (op.attrs.bessel_count > 0) {
      op.attrs.bessel_count =
          op.attrs.bessel_count / forward.batch * new_batch * (sync ? sharding.cores : 1);
      op.attrs.value = bessel_factor(op.attrs.bessel_count);
    }
    const std::string name = op.name;
    const bool statistic = op.attrs.batch_statistic;
    ValueId value = out.graph.add(std::move(op));
    if (sync && statistic) {  // equal shards: the mean of means is the mean
      GraphBuilder b = GraphBuilder(out.graph).derived(name, Phase::kForward);
      value = b.binary_scalar(OpKind::kDivide, b.all_reduce(value, "all_reduce"),
                              static_cast<double>(sharding.cores), "mean_over_cores");
    }
    renamed[static_cast<size_t>(id)] = value;
  }

  out.renumber(renamed);
  return out;
}

}  // namespace

Program rebatch(const Program& forward, int64_t batch) {
  return copy_forward(forward, batch, forward.sharding);
}

Program shard(const Program& forward, const Sharding& sharding) {
  if (forward.sharding.cores != 1) throw GraphError("shard: the program is sharded already");
  if (sharding.cores < 1 || forward.batch % sharding.cores != 0) {
    throw GraphError("shard: a batch of " + std::to_string(forward.batch) +
                     " does not divide over " + std::to_string(sharding.cores) + " cores");
  }
  return copy_forward(forward, forward.batch / sharding.cores, sharding);
}

}  // namespace twinrun
