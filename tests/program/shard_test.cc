// Tests of shard() and rebatch(): the graph of one core's program. Also tests layers: padding,
// errors, inference.
#include <gtest/gtest.h>

#include "program/graph/shard_plan.h"
#include "tests/program/models.h"

namespace twinrun {
namespace {

constexpr Sharding kPerCore{.cores = 4};
constexpr Sharding kSynced{.cores = 4, .batchnorm = BatchNormSync::kSynced};

const Op& op(const Program& p, const std::string& name) {
  const ValueId id = p.graph.find(name);
  if (id == kNoValue) throw std::runtime_error("no op " + name);
  return p.graph.op(id);
}
const Op& operand(const Program& p, const std::string& name, size_t i) {
  return p.graph.op(op(p, name).operands[i]);
}

TEST(Shard, ShapesArePerReplica) {
  const Program forward = models::cnn(16);
  const Program p = shard(forward, kPerCore);
  EXPECT_EQ(p.batch, 4);
  EXPECT_EQ(p.sharding, kPerCore);
  EXPECT_EQ(op(p, "images").type.dims, (Dims{4, 6, 6, 2}));
  EXPECT_EQ(op(p, "labels").type.dims, (Dims{4}));
  EXPECT_EQ(op(p, "sample_ids").type.dims, (Dims{4}));
  EXPECT_EQ(op(p, "step").type.dims, (Dims{}));
  EXPECT_EQ(op(p, "flatten1/reshape").type.dims, (Dims{4, 36}));
  EXPECT_EQ(op(p, "dropout1/rng_uniform").type.dims, (Dims{4, 8}));
  EXPECT_EQ(p.graph.type(p.find_output("logits")->id).dims, (Dims{4, 3}));
  for (size_t i = 0; i < p.state.size(); ++i) EXPECT_EQ(p.state[i].type, forward.state[i].type);
  // The ops have the same names; only sizes differ.
  ASSERT_EQ(p.graph.size(), forward.graph.size());
  for (ValueId id = 0; id < p.graph.size(); ++id) {
    EXPECT_EQ(p.graph.op(id).name, forward.graph.op(id).name);
  }
}

TEST(Shard, OneAllReducePerGradient) {
  const Program step = training_step(shard(models::cnn(16), kPerCore));
  int parameters = 0;
  for (const auto& var : step.state) parameters += var.role == StateRole::kParameter;
  EXPECT_EQ(parameters, 9);
  EXPECT_EQ(models::count(step, OpKind::kAllReduce), parameters);
  EXPECT_EQ(models::count(training_step(models::cnn(16)), OpKind::kAllReduce), 0);
  Sharding none = kPerCore;
  none.reduce_gradients = false;
  EXPECT_EQ(models::count(training_step(shard(models::cnn(16), none)), OpKind::kAllReduce), 0);
}

// As TensorFlow's CrossShardOptimizer does, a mean scales the loss before autodiff; nothing is
// divided afterwards.
TEST(Shard, MeanScalesTheLossBeforeAutodiff) {
  const Program mean =
      training_step(shard(models::mlp(8), {.cores = 4, .reduction = Reduction::kMean}));
  // The scaled loss itself is pruned because no op reads it; its factor starts the gradient.
  EXPECT_EQ(operand(mean, "loss/scale_by_cores.grad_lhs", 0).name, "loss/scale_by_cores.grad_seed");
  EXPECT_EQ(operand(mean, "loss/scale_by_cores.grad_lhs", 1).attrs.value, 0.25);
  EXPECT_EQ(op(mean, "loss/scale_by_cores.grad_seed").attrs.value, 1);
  EXPECT_EQ(operand(mean, "loss/value.grad_mean", 0).name, "loss/scale_by_cores.grad_lhs");
  EXPECT_EQ(mean.find_output("loss")->id, mean.graph.find("loss/value"))
      << "the reported loss is unscaled";
  const Program sum =
      training_step(shard(models::mlp(8), {.cores = 4, .reduction = Reduction::kSum}));
  EXPECT_EQ(sum.graph.find("loss/scale_by_cores_constant"), kNoValue);
  EXPECT_EQ(op(sum, "loss/value.grad_seed").attrs.value, 1);
  for (const Program* p : {&mean, &sum}) {
    EXPECT_EQ(operand(*p, "dense1/kernel.grad.all_reduce", 0).name, "dense1/kernel.grad");
    EXPECT_EQ(operand(*p, "dense1/kernel.update_step", 0).name, "dense1/kernel.grad.all_reduce");
  }
}

TEST(Shard, OneCoreIsTheWholeProgram) {
  const Program whole = training_step(models::cnn(16));
  EXPECT_EQ(to_text(training_step(shard(models::cnn(16), {.cores = 1}))), to_text(whole));
  const auto ops = [](const Program& p) { return to_text(p).substr(to_text(p).find('\n')); };
  const Sharding synced{.cores = 1, .batchnorm = BatchNormSync::kSynced};
  EXPECT_EQ(ops(training_step(shard(models::cnn(16), synced))), ops(whole))
      << "no all-reduce over one core";
}

TEST(Shard, SyncedStatisticsAreAllReduced) {
  const Program p = shard(models::cnn(16), kSynced);
  EXPECT_EQ(models::count(p, OpKind::kAllReduce), 4) << "mean and variance, twice";
  for (const std::string bn : {"bn1", "bn2"}) {
    for (const std::string what : {"/mean", "/variance"}) {
      EXPECT_EQ(operand(p, bn + what + ".all_reduce", 0).name, bn + what);
      EXPECT_EQ(operand(p, bn + what + ".mean_over_cores", 0).name, bn + what + ".all_reduce");
      EXPECT_EQ(op(p, bn + what + ".mean_over_cores").kind, OpKind::kDivide);
      EXPECT_EQ(op(p, bn + what + ".mean_over_cores_constant").attrs.value, 4);
    }
    // The variance is about the mean over all cores, and the ops that follow read both.
    EXPECT_EQ(operand(p, bn + "/mean_broadcast", 0).name, bn + "/mean.mean_over_cores");
    EXPECT_EQ(operand(p, bn + "/add_epsilon", 0).name, bn + "/variance.mean_over_cores");
    EXPECT_EQ(operand(p, bn + "/moving_mean.gap", 1).name, bn + "/mean.mean_over_cores");
  }
  EXPECT_EQ(operand(p, "bn2/moving_variance.gap", 1).name, "bn2/variance.mean_over_cores");
  // In the backward pass their cotangents are summed over the cores, too.
  const Program step = training_step(p);
  EXPECT_NE(step.graph.find("bn1/mean.all_reduce.grad_all_reduce"), kNoValue);
  EXPECT_NE(step.graph.find("bn1/variance.all_reduce.grad_all_reduce"), kNoValue);
  EXPECT_EQ(models::count(step, OpKind::kAllReduce), 9 + 4 + 4);
}

// n in Bessel's factor n / (n - 1) is the number of elements averaged: the pixels of this core, or
// those of all cores.
TEST(Shard, BesselConstantCountsWhatWasAveraged) {
  const auto factor = [](const Program& p) { return op(p, "bn1/bessel").attrs.value; };
  const Program whole = models::cnn(16);
  const double all = 16 * 36, one = 4 * 36;
  EXPECT_EQ(factor(whole), all / (all - 1));
  const Program per_core = shard(whole, kPerCore), synced = shard(whole, kSynced),
                small = rebatch(whole, 4);
  EXPECT_EQ(factor(per_core), one / (one - 1));
  EXPECT_EQ(factor(synced), all / (all - 1));
  EXPECT_EQ(factor(small), one / (one - 1));
  EXPECT_EQ(bessel_factor(1), 1) << "one element: no division by zero";
  EXPECT_EQ(whole.graph.find("bn2/bessel"), kNoValue)
      << "[batch, features]: TF's fused kernel is not used";
}

TEST(Shard, Refusals) {
  EXPECT_THROW(shard(models::mlp(8), {.cores = 3}), GraphError);
  EXPECT_THROW(shard(models::mlp(8), {.cores = 0}), GraphError);
  EXPECT_THROW(shard(shard(models::mlp(8), {.cores = 2}), {.cores = 2}), GraphError);
  try {
    shard(models::mlp(8), {.cores = 3});
  } catch (const GraphError& e) {
    EXPECT_STREQ(e.what(), "shard: a batch of 8 does not divide over 3 cores");
  }
}

TEST(Rebatch, IsTheModelBuiltForThatBatch) {
  EXPECT_EQ(to_text(rebatch(models::cnn(16), 4)), to_text(models::cnn(4)));
  EXPECT_EQ(to_text(rebatch(models::cnn(4), 16)), to_text(models::cnn(16)));
  EXPECT_EQ(to_text(rebatch(models::cnn(16, {}, Mode::kInference), 3)),
            to_text(models::cnn(3, {}, Mode::kInference)));
}

TEST(Rebatch, OfAShardedProgramIsTheShardedOther) {
  EXPECT_EQ(to_text(rebatch(shard(models::cnn(16), kPerCore), 2)),
            to_text(shard(models::cnn(8), kPerCore)));
}

TEST(Rebatch, OfASyncedProgram) {
  EXPECT_EQ(to_text(rebatch(shard(models::cnn(16), kSynced), 2)),
            to_text(shard(models::cnn(8), kSynced)));
}

TEST(ShardPlan, ContiguousBlocks) {
  const ShardPlan plan{4, 20};
  EXPECT_EQ(plan.per_core(), 5);
  int64_t next = 0;
  for (int core = 0; core < 4; ++core) {
    EXPECT_EQ(plan.rows(core).first, next);
    next = plan.rows(core).second;
    EXPECT_EQ(next - plan.rows(core).first, 5);
  }
  EXPECT_EQ(next, 20);
}

TEST(Layers, RefusalsSayWhatToDo) {
  Layers net(Mode::kTraining, 4, {{6, 6, 2}}, 1);
  const auto refusal = [](auto build) -> std::string {
    try {
      build();
    } catch (const GraphError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal([&] { net.dense("d", 3); }),
            "d: dense needs [batch, features], found [4,6,6,2]; put a flatten layer before it");
  net.flatten("f");
  EXPECT_EQ(refusal([&] { net.conv2d("c", {.filters = 3, .kernel = 3}); }),
            "c: conv2d needs [batch, height, width, channels], found [4,72]");
  EXPECT_EQ(refusal([&] {
              net.pool("p", {2, 2, {Padding::Kind::kValid}}, Reducer::kMax);
            }),
            "p: pooling needs [batch, height, width, channels], found [4,72]");
  EXPECT_EQ(
      refusal([&] { net.softmax_cross_entropy(3, {Reducer::kMean}); }),
      "softmax_cross_entropy over 3 classes needs a last layer of shape [batch, 3], found [4,72]");
}

// TensorFlow's SAME: ceil(in / stride) outputs; if the padding is odd, the high side gets one more.
TEST(Layers, SamePadding) {
  for (const auto& [in, kernel, stride, out, low, high] :
       std::vector<std::array<int64_t, 6>>{{6, 3, 1, 6, 1, 1},
                                           {6, 3, 2, 3, 0, 1},
                                           {7, 3, 2, 4, 1, 1},
                                           {6, 2, 1, 6, 0, 1},
                                           {5, 1, 2, 3, 0, 0},
                                           {6, 5, 3, 2, 1, 1}}) {
    Layers net(Mode::kTraining, 2, {{in, in, 1}}, 1);
    net.conv2d("c", {.filters = 1, .kernel = kernel, .stride = stride, .weights = {.bias = false}});
    EXPECT_EQ(net.shape(), (Dims{2, out, out, 1}));
    net.flatten("f");
    net.softmax_cross_entropy(out * out, {Reducer::kMean});
    const Program p = net.finish({});
    const Window& w = op(p, "c/convolution").attrs.window;
    EXPECT_EQ(w.pad_low[0], low) << in << kernel << stride;
    EXPECT_EQ(w.pad_high[1], high) << in << kernel << stride;
  }
}

TEST(Layers, InferenceUsesTheSameStateWithoutDropout) {
  const Program train = models::cnn(16), infer = models::cnn(5, {}, Mode::kInference);
  ASSERT_EQ(train.state.size(), infer.state.size());
  for (size_t i = 0; i < train.state.size(); ++i) {
    EXPECT_EQ(train.state[i].name, infer.state[i].name);
    EXPECT_EQ(train.state[i].type, infer.state[i].type);
    EXPECT_EQ(infer.state[i].next, kNoValue);
  }
  EXPECT_EQ(models::count(infer, OpKind::kRngUniform), 0);
  EXPECT_EQ(models::count(train, OpKind::kRngUniform), 1);
  EXPECT_EQ(operand(infer, "bn1/mean_broadcast", 0).name, "bn1/moving_mean");
  EXPECT_EQ(operand(infer, "bn1/add_epsilon", 0).name, "bn1/moving_variance");
}

}  // namespace
}  // namespace twinrun
