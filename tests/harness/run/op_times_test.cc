// Tests the times of ops: every core has every op, and the bits are those of a run without timing.
#include "harness/run/op_times.h"

#include <gtest/gtest.h>

#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

constexpr int kCores = 4;

struct Timed {
  OpTimes times{2, 2};
  RunFile file;
};

void train_timed(Timed& out, bool ops, std::vector<FaultSpec> faults = {}) {
  const Experiment e = tiny::experiment(tiny::kDense, {{"train.steps", "6"}});
  Sharding sharding = e.sharding;
  sharding.cores = kCores;
  auto backend = with_times(tiny::backend("tpu", 2), out.times, ops);
  backend = with_faults(std::move(backend), std::move(faults), 1);
  out.file = tiny::must(train(e, e.sharded(sharding), *backend, {.threads = 2})).file;
}

RunFile untimed() {
  const Experiment e = tiny::experiment(tiny::kDense, {{"train.steps", "6"}});
  Sharding sharding = e.sharding;
  sharding.cores = kCores;
  return tiny::must(train(e, e.sharded(sharding), *tiny::backend("tpu", 2), {.threads = 2})).file;
}

TEST(OpTimes, TheBitsAreThoseOfAnUntimedRun) {
  Timed t;
  train_timed(t, true);
  EXPECT_EQ(t.file.root_digest(), untimed().root_digest());
}

TEST(OpTimes, ThreadsLeaveEveryCoreItsOpsInOrder) {
  Timed t;
  train_timed(t, true);
  ASSERT_EQ(t.times.steps.size(), 2U);
  EXPECT_EQ(t.times.steps[0].step, 2);
  EXPECT_EQ(t.times.steps[1].step, 3);
  for (const TimedStep& step : t.times.steps) {
    ASSERT_EQ(step.cores.size(), static_cast<size_t>(kCores));
    EXPECT_FALSE(step.collectives.empty());
    for (const auto& ops : step.cores) {
      ASSERT_EQ(ops.size(), step.cores[0].size());
      double last = step.begin;
      for (size_t i = 0; i < ops.size(); ++i) {
        EXPECT_EQ(ops[i].name, step.cores[0][i].name);
        EXPECT_GE(ops[i].begin, last) << "ops of a core do not overlap";
        EXPECT_GE(ops[i].end, ops[i].begin);
        last = ops[i].end;
      }
      EXPECT_GE(step.end, last);
    }
  }
  EXPECT_GE(t.times.steps[1].begin, t.times.steps[0].end);
}

// Faults are injected above the timing layer and still act.
TEST(OpTimes, FaultsAreTimedToo) {
  Timed healthy, broken;
  train_timed(healthy, true);
  train_timed(broken, true, {tiny::must(parse_fault("drop_core@*.all_reduce"))});
  EXPECT_NE(broken.file.root_digest(), healthy.file.root_digest());
  EXPECT_EQ(broken.times.steps[0].cores[0].size(), healthy.times.steps[0].cores[0].size());
}

TEST(OpTimes, WithoutOpsTheStepsAreLeft) {
  Timed t;
  train_timed(t, false);
  ASSERT_EQ(t.times.steps.size(), 2U);
  for (const TimedStep& step : t.times.steps) {
    EXPECT_GT(step.end, step.begin);
    EXPECT_TRUE(step.collectives.empty());
    for (const auto& ops : step.cores) EXPECT_TRUE(ops.empty());
  }
}

}  // namespace
}  // namespace twinrun
