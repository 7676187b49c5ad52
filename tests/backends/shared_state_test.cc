// Tests that replicas hold once what has the same bits: which of their tensors are one object, that
// the bits are those of replicas that share nothing, and how much memory a core adds.
#include <gtest/gtest.h>

#include <set>

#include "backends/core/share_equal.h"
#include "program/analysis/memory_plan.h"
#include "program/base/tensor_memory.h"
#include "program/graph/liveness.h"
#include "tests/backends/small_programs.h"

namespace twinrun::shared_state_test {
namespace {

using small::Trial;

constexpr int kCores = 20;

Program classifier(int cores, int64_t width = 24, bool reduce = true) {
  OptimizerSpec adam;
  adam.kind = OptimizerSpec::Kind::kAdam;
  const Program forward =
      build_forward(Mode::kTraining, 2 * cores, {{width}}, 3, adam, [&](Layers& net) {
        net.dense("dense1", width);
        net.batch_norm("bn1", {.epsilon = 1e-3, .momentum = 0.9});
        net.relu("relu1");
        net.dense("dense2", 5);
        net.softmax_cross_entropy(5, {Reducer::kMean});
      });
  return training_step(shard(forward, {.cores = cores, .reduce_gradients = reduce}));
}

void feed(Trial& t, int64_t width = 24) {
  const auto batch = static_cast<int64_t>(2 * t.states.size());
  t.split("images", small::generic_f32({batch, width}, -1.0, 2.0, 5));
  std::vector<int32_t> labels, ids;
  for (int64_t i = 0; i < batch; ++i) {
    labels.push_back(static_cast<int32_t>(i * 7 % 5));
    ids.push_back(static_cast<int32_t>(i));
  }
  t.split("labels", small::i32({batch}, labels));
  t.split("sample_ids", small::i32({batch}, ids));
}

// How many different objects the replicas hold of a state variable.
size_t objects(const Trial& t, const std::string& name) {
  std::set<const void*> found;
  for (size_t r = 0; r < t.states.size(); ++r) found.insert(t.state(name, r).raw());
  return found.size();
}

void unshare(States& states) {
  for (ReplicaState& replica : states) {
    for (Tensor& t : replica.vars) t = t.clone();
  }
}

// Watches the ops of a name. From step 1 on it changes what one core gets of a collective.
class OneCore : public OpHooks {
 public:
  OneCore(std::string op, int core) : op_(std::move(op)), core_(core) {}
  bool watches(const Program& p, ValueId id, int64_t step) override {
    return step >= 1 && p.graph.op(id).name == op_;
  }
  void after_copy(const OpSite& site, const std::vector<Tensor>&, Tensor& copy) override {
    if (site.replica != core_) return;
    copy = copy.clone();
    copy.as<float>()[0] += 1;
  }

 private:
  std::string op_;
  int core_;
};

TEST(SharedState, EqualReplicasHoldOneObject) {
  Trial t("tpu", classifier(kCores), {.threads = 2});
  feed(t);
  for (int step = 0; step < 3; ++step) t.step(step);
  for (const StateVar& var : t.program().state) {
    EXPECT_EQ(objects(t, var.name), var.role == StateRole::kStatistic ? size_t{kCores} : 1u)
        << var.name << ": statistics of a core's own samples differ";
  }
}

TEST(SharedState, WithoutAnAllReduceEachReplicaHoldsItsOwn) {
  Trial t("tpu", classifier(kCores, 24, false), {.threads = 2});
  feed(t);
  t.step(0);
  EXPECT_EQ(objects(t, "dense1/kernel"), size_t{kCores});
  EXPECT_EQ(objects(t, "dense1/kernel.adam_m"), size_t{kCores});
}

// Whichever core diverges, the first one included: the others go on sharing.
TEST(SharedState, ADivergingReplicaHoldsItsOwn) {
  for (int core : {0, 3, kCores - 1}) {
    const Program program = classifier(kCores);
    Trial t("tpu", program, {.threads = 2}), apart("tpu", program, {.threads = 3});
    feed(t);
    feed(apart);
    OneCore fault("dense2/kernel.grad.all_reduce", core), same = fault;
    for (int step = 0; step < 4; ++step) {
      t.step(step, nullptr, step == 1 ? &fault : nullptr);
      unshare(apart.states);
      apart.step(step, nullptr, step == 1 ? &same : nullptr);
      ASSERT_EQ(t.digest(), apart.digest()) << "step " << step;
    }
    EXPECT_EQ(objects(t, "dense2/kernel"), 2u);
    EXPECT_EQ(objects(t, "dense2/kernel.adam_m"), 2u);
    EXPECT_EQ(objects(t, "dense1/kernel"), 1u) << "its gradient came through an all-reduce";
    EXPECT_FALSE(
        t.state("dense2/kernel", static_cast<size_t>(core)).same_bits(t.state("dense2/kernel", 5)));
  }
}

// A hook on an op makes every replica compute it. Where the results are equal they become one
// object again, and a replica that comes back to the others' bits shares again.
TEST(SharedState, WhatIsEqualAgainIsSharedAgain) {
  Trial t("tpu", classifier(kCores), {.threads = 2});
  feed(t);
  const ValueId next =
      t.program().state[static_cast<size_t>(t.program().state_index("dense1/kernel"))].next;
  OneCore watch(t.program().graph.op(next).name, -1);
  unshare(t.states);
  t.step(1, nullptr, &watch);
  EXPECT_EQ(objects(t, "dense1/kernel"), 1u);
}

TEST(SharedState, ComparesUpToSixteenDifferentOnes) {
  States states;
  for (int r = 0; r < 40; ++r)
    states.push_back({{Tensor::scalar(static_cast<float>(r % 16)), Tensor::scalar(7)}});
  share_equal(states);
  std::set<const void*> first, second;
  for (const ReplicaState& replica : states) {
    first.insert(replica.vars[0].raw());
    second.insert(replica.vars[1].raw());
  }
  EXPECT_EQ(first.size(), 16u);
  EXPECT_EQ(second.size(), 1u);
}

// What a core adds to the peak: the gradients that it carries to the all-reduce, and its own
// statistics and loss. Weights, slots and the activations of a block of cores are counted once.
TEST(SharedState, ACoreAddsOnlyWhatDiffers) {
  const auto peak = [](int cores) {
    const Program program = classifier(cores, 128);
    Trial t("tpu", program, {.threads = 1});
    feed(t, 128);
    const int64_t before = tensor_memory().live;
    reset_tensor_peak();
    for (int step = 0; step < 3; ++step) t.step(step);
    return tensor_memory().peak - before;
  };
  const Program program = classifier(16, 128);
  const std::vector<bool> constant = constant_values(program);
  const MemoryPlan plan = plan_memory(program, plan_fusion(program, constant), constant);
  int64_t own = plan.carried_bytes;
  for (const StateVar& var : program.state) {
    // The new statistics are written beside the old ones.
    if (var.role == StateRole::kStatistic) own += 2 * static_cast<int64_t>(var.type.bytes());
  }
  const int64_t a_core = (peak(48) - peak(16)) / 32;
  EXPECT_GE(a_core, plan.carried_bytes);
  EXPECT_LE(a_core, own + 4 * kLine) << "and the loss, this step's and the last one's";
  int64_t gradients = 0;
  for (const StateVar& var : program.state) {
    if (var.role == StateRole::kParameter) gradients += static_cast<int64_t>(var.type.bytes());
  }
  EXPECT_LT(plan.carried_bytes, gradients + gradients / 10) << "nothing but gradients is carried";
}

}  // namespace
}  // namespace twinrun::shared_state_test
