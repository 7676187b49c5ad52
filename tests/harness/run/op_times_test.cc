// Tests the times of ops: spans nest, every core has every op, and the bits are those of a run
// without timing.
#include "harness/run/op_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

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

TEST(OpTimes, SpansOfATrackAreApart) {
  Timed t;
  train_timed(t, true);
  const ChromeTrace trace = chrome_trace(t.times, "tpu");
  ASSERT_EQ(trace.tracks.size(), kCores + 1U);
  std::set<std::string> categories;
  for (int track = 0; track <= kCores; ++track) {
    std::vector<std::pair<double, double>> spans;
    for (const TraceSpan& span : trace.spans) {
      if (span.track != track) continue;
      spans.emplace_back(span.begin, span.begin + span.duration);
      categories.insert(span.category);
    }
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i)
      EXPECT_LE(spans[i - 1].second, spans[i].first + 1e-6) << "track " << track;
  }
  EXPECT_TRUE(categories.contains("collective") && categories.contains("forward") &&
              categories.contains("step"));
}

// By hand: the timed steps last from second 100 to 101. Spans that begin before are cut, and spans
// outside are left out.
TEST(OpTimes, InputBesideTheCores) {
  OpTimes times;
  times.zero = 100;
  times.steps = {{.step = 7, .begin = 0, .end = 0.5}, {.step = 8, .begin = 0.6, .end = 1}};
  ChromeTrace trace = chrome_trace(times, "tpu");
  const auto tracks = static_cast<int>(trace.tracks.size());
  PipelineCounters input;
  input.asked = {{6, 98, 1, 0}, {7, 99, 1.25, 0}, {8, 100.5, 0.1, 2}, {9, 102, 1, 0}};
  input.made = {{9, 100.75, 100.875}};
  add_input(trace, times, input);
  ASSERT_EQ(trace.tracks.size(), static_cast<size_t>(tracks) + 2);
  std::vector<TraceSpan> spans(trace.spans.begin() + 2, trace.spans.end());
  ASSERT_EQ(spans.size(), 3U);
  EXPECT_EQ(spans[0].name, "wait for batch 7");
  EXPECT_EQ(spans[0].track, tracks);
  EXPECT_NEAR(spans[0].begin, 0, 1e-3);
  EXPECT_NEAR(spans[0].duration, 0.25e6, 1e-3);
  EXPECT_EQ(spans[1].name, "wait for batch 8");
  EXPECT_EQ(spans[1].words, (TraceWords{{"ready", "2"}}));
  EXPECT_EQ(spans[2].name, "batch 9");
  EXPECT_EQ(spans[2].track, tracks + 1);
  EXPECT_NEAR(spans[2].begin, 0.75e6, 1e-3);
  ChromeTrace untimed = chrome_trace({}, "tpu");
  add_input(untimed, {}, input);
  EXPECT_EQ(untimed.tracks.size(), 1U) << "nothing was timed";
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
  const ChromeTrace trace = chrome_trace(t.times, "tpu");
  EXPECT_EQ(trace.spans.size(), 2U);
}

}  // namespace
}  // namespace twinrun
