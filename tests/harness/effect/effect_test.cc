// Tests paired seeds that are added until the effect is decided: intervals by hand, looks, metrics,
// margins; and whether a reference has learnt.
#include "harness/effect/effect.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace twinrun {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

DiagnoseSpec asked(int seeds, int most) {
  DiagnoseSpec spec;
  spec.seeds = seeds;
  spec.max_seeds = most;
  return spec;
}

std::vector<Evaluation> losses(const std::vector<double>& values) {
  std::vector<Evaluation> out;
  for (double value : values) out.push_back({1, value, 0});
  return out;
}

// Judges by the loss alone, against zeros; the reference's seeds have a standard deviation of
// `spread`.
TrajectoryRow judged(const DiagnoseSpec& spec, const std::vector<double>& differences,
                     double spread = 1) {
  std::vector<double> reference;
  for (size_t i = 0; i < differences.size(); ++i)
    reference.push_back(i % 2 == 0 ? spread : -spread);
  return SeedTrials(spec, false, 0)
      .compare("S - R", "", losses(differences),
               losses(std::vector<double>(differences.size(), 0.0)), losses(reference))
      .front();
}

TEST(Effect, LooksGrowToTheMost) {
  EXPECT_EQ(looks_of(3, 20), (std::vector<int>{3, 5, 8, 13, 20}));
  EXPECT_EQ(looks_of(3, 3), std::vector<int>{3});
  EXPECT_EQ(looks_of(3, 4), (std::vector<int>{3, 4}));
  EXPECT_EQ(looks_of(6, 20), (std::vector<int>{6, 10, 20}));
  EXPECT_EQ(SeedTrials(asked(5, 3), false, 0).looks(), std::vector<int>{5});
  EXPECT_EQ(SeedTrials(asked(1, 20), false, 0).looks(), std::vector<int>{1});
}

// Differences 0.01, 0.02, 0.03: mean 0.02, deviation 0.01. Student's two-sided quantile at two
// degrees of freedom is 4.3027 at 5 % and, for one of five looks, 9.9248 at 1 % (tables of
// Student's t).
TEST(Effect, EachLookHasItsPartOfTheError) {
  const double error = 0.01 / std::sqrt(3.0);
  const TrajectoryRow one = judged(asked(3, 3), {0.01, 0.02, 0.03});
  EXPECT_NEAR(one.high - one.mean, 4.3026527 * error, 1e-8);
  EXPECT_DOUBLE_EQ(one.level, 0.95);
  const TrajectoryRow five = judged(asked(3, 20), {0.01, 0.02, 0.03});
  EXPECT_NEAR(five.high - five.mean, 9.9248432 * error, 1e-8);
  EXPECT_DOUBLE_EQ(five.level, 0.99);
  // 80 % power: t(0.8) at two degrees of freedom is 1.0607.
  EXPECT_NEAR(five.detectable, (9.9248432 + 1.0606602) * error, 1e-7);
}

TEST(Effect, WithoutAMarginWhatLeavesZeroCounts) {
  EXPECT_EQ(judged(asked(3, 3), {0.010, 0.011, 0.012}).outcome, PairedOutcome::kHarmful);
  EXPECT_EQ(judged(asked(3, 3), {-0.010, -0.011, -0.012}).outcome, PairedOutcome::kBeneficial);
  // If the interval contains 0, nothing is detected provided that the seeds would have shown what
  // another seed does; otherwise it is undecided.
  EXPECT_EQ(judged(asked(3, 3), {0.010, -0.011, 0.012}, 1).outcome, PairedOutcome::kNoneDetected);
  const TrajectoryRow open = judged(asked(3, 3), {0.010, -0.011, 0.012}, 0.001);
  EXPECT_EQ(open.outcome, PairedOutcome::kUndecided);
  EXPECT_GT(open.detectable, open.must_see);
  EXPECT_EQ(judged(asked(3, 3), {0, 0, 0}).outcome, PairedOutcome::kIdentical);
  EXPECT_EQ(judged(asked(1, 3), {0.1}).outcome, PairedOutcome::kUndecided);
}

TEST(Effect, ADeclaredMarginIsHeldAgainstTheInterval) {
  DiagnoseSpec spec = asked(3, 3);
  spec.margin = 0.02;
  EXPECT_EQ(judged(spec, {0.010, 0.011, 0.012}).outcome, PairedOutcome::kWithinMargin);
  EXPECT_EQ(judged(spec, {0.001, -0.001, 0.0005}).outcome, PairedOutcome::kNoneDetected);
  EXPECT_EQ(judged(spec, {0.030, 0.031, 0.032}).outcome, PairedOutcome::kHarmful);
  EXPECT_EQ(judged(spec, {0.001, -0.02, 0.02}).outcome, PairedOutcome::kUndecided);
  // Differs from 0, and is neither inside the margin nor beyond it: more seeds are needed, and at
  // the last look it counts as an effect.
  EXPECT_EQ(judged(spec, {0.0190, 0.0195, 0.0215}).outcome, PairedOutcome::kHarmful);
  spec.max_seeds = 20;
  EXPECT_EQ(judged(spec, {0.001, -0.001, 0.0005}).outcome, PairedOutcome::kUndecided)
      << "all seeds acquit";
  EXPECT_EQ(judged(spec, {0.0190, 0.0195, 0.0215}).outcome, PairedOutcome::kUndecided);
}

TEST(Effect, WhatSeedsWouldDecide) {
  const TrajectoryRow open = judged(asked(3, 3), {0.01, 0.02, 0.06}, 0.001);
  ASSERT_EQ(open.outcome, PairedOutcome::kUndecided);
  ASSERT_GT(open.would_decide, 3);
  // That many seeds of this mean and spread decide, and fewer do not.
  const auto repeated = [&](int n) {
    std::vector<double> d;
    const double deviation = std::sqrt(7e-4);  // of 0.01, 0.02, 0.06
    const double each = deviation * std::sqrt((n - 1.0) / n);
    for (int i = 0; i < n; ++i) d.push_back(0.03 + (i % 2 == 0 ? each : -each));
    return judged(asked(3, n), d, 0.001).outcome;
  };
  const int even = open.would_decide + open.would_decide % 2;
  EXPECT_EQ(repeated(even), PairedOutcome::kHarmful);
  EXPECT_EQ(repeated(open.would_decide - 2 - open.would_decide % 2), PairedOutcome::kUndecided);
}

TEST(Effect, ARunThatEndsInNaNHarms) {
  EXPECT_EQ(judged(asked(3, 3), {kNaN, 0.1, 0.1}).outcome, PairedOutcome::kHarmful);
  const auto row =
      SeedTrials(asked(3, 3), false, 0)
          .compare("S - R", "", losses({1, 1, 1}), losses({1, kNaN, 1}), losses({1, kNaN, 1}))
          .front();
  EXPECT_EQ(row.outcome, PairedOutcome::kUndecided) << "the reference of a seed diverged";
}

TEST(Effect, MetricsAreTheLossAndTheAccuracyOfClasses) {
  const auto metrics = [](DiagnoseSpec spec, bool classes) {
    std::string names;
    const std::vector<Evaluation> some = {{1, 1, 0.5}, {1, 2, 0.6}};
    for (const TrajectoryRow& row :
         SeedTrials(spec, classes, 100).compare("S - R", "", some, some, some))
      names += row.metric + ";";
    return names;
  };
  DiagnoseSpec spec;
  EXPECT_EQ(metrics(spec, true), "held-out loss;held-out accuracy;");
  EXPECT_EQ(metrics(spec, false), "held-out loss;");
  spec.margin = 0.1;  // the user has chosen the metric that matters
  EXPECT_EQ(metrics(spec, true), "held-out loss;");
  spec.accuracy_margin = 0.1;
  EXPECT_EQ(metrics(spec, true), "held-out loss;held-out accuracy;");
  spec.margin = 0;
  EXPECT_EQ(metrics(spec, true), "held-out accuracy;");
  spec.metric = "both";
  EXPECT_EQ(metrics(spec, true), "held-out loss;held-out accuracy;");
  spec.metric = "loss";
  EXPECT_EQ(metrics(spec, true), "held-out loss;");
  spec.metric = "accuracy";
  EXPECT_EQ(metrics(spec, true), "held-out accuracy;");
}

// Lower accuracy is worse. Equal differences of one sample are no certainty: accuracy is a multiple
// of one sample, so it has a rounding error of its own.
TEST(Effect, AccuracyIsCountedInSamples) {
  DiagnoseSpec spec = asked(3, 3);
  spec.metric = "accuracy";
  const SeedTrials trials(spec, true, 100);
  const auto of = [&](double by) {
    return trials
        .compare("S - R", "", {{1, 0, 0.5 + by}, {1, 0, 0.6 + by}, {1, 0, 0.7 + by}},
                 {{1, 0, 0.5}, {1, 0, 0.6}, {1, 0, 0.7}}, {{1, 0, 0.5}, {1, 0, 0.6}, {1, 0, 0.7}})
        .front();
  };
  const TrajectoryRow one = of(-0.01);
  EXPECT_NEAR(one.high - one.mean, 4.3026527 * 0.01 / std::sqrt(12.0) / std::sqrt(3.0), 1e-8);
  EXPECT_EQ(of(-0.1).outcome, PairedOutcome::kHarmful);
  EXPECT_EQ(of(0.1).outcome, PairedOutcome::kBeneficial);
}

// Two runs whose losses differ by one unit in the last place in each of two seeds are not shown to
// differ.
TEST(Effect, ALossIsABinary32Number) {
  const double ulp = 0x1p-19;  // one ulp at 20
  const std::vector<Evaluation> r = losses({20, 21}), t = losses({20 + ulp, 21 + ulp});
  const TrajectoryRow row = SeedTrials(asked(2, 2), false, 0).compare("T - R", "", t, r, r).front();
  EXPECT_LT(row.low, 0);
  EXPECT_EQ(row.outcome, PairedOutcome::kNoneDetected);
}

TEST(Effect, WhetherTheReferenceHasLearnt) {
  auto scenario = load_scenario("digits_mlp", {{"data.train", "256"}, {"data.eval", "200"}});
  ASSERT_TRUE(scenario) << scenario.error().what;
  const auto e = make_experiment(*scenario);
  ASSERT_TRUE(e) << e.error().what;
  const auto learning = [&](double initial, const std::vector<double>& ends, double accuracy) {
    std::vector<Evaluation> runs;
    for (double end : ends) runs.push_back({1, end, accuracy});
    return judge_learning(*e, {0, initial, 0.1}, runs);
  };
  const Learning good = learning(2.4, {1.0, 1.1, 0.9}, 0.7);
  EXPECT_TRUE(good.learnt);
  ASSERT_TRUE(good.prior);
  EXPECT_NEAR(*good.prior, std::log(10.0), 0.05);  // ten classes of nearly equal frequency
  // Better than the initial weights, but no better than the frequencies of the classes.
  const Learning chance = learning(2.6, {2.31, 2.30, 2.32}, 0.12);
  EXPECT_FALSE(chance.learnt);
  EXPECT_GT(chance.steps_to_try, scenario->train.steps);
  // The improvement is within what another seed does.
  EXPECT_FALSE(learning(2.3, {2.29, 2.1, 2.35}, 0.12).learnt);
  // An overconfident model whose answers are right has learnt nevertheless.
  EXPECT_TRUE(learning(2.3, {3.0, 3.1, 2.9}, 0.7).learnt);
  // A loss that does not fall.
  EXPECT_EQ(learning(2.3, {2.5, 2.5, 2.5}, 0.1).steps_to_try, 10 * scenario->train.steps);
}

}  // namespace
}  // namespace twinrun
