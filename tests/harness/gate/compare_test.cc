// Tests A/B comparisons: the decision rule, its statistics by simulation, and whole comparisons of
// small models.
#include "harness/gate/compare.h"

#include <boost/math/distributions/binomial.hpp>
#include <cmath>
#include <fstream>
#include <random>

#include "harness/effect/trajectory.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

TrajectoryRow row_of(const std::vector<double>& differences, double margin) {
  return compare_paired("A - B", "", differences, std::vector<double>(differences.size(), 0.0),
                        {margin, "--margin", true});
}

TEST(Compare, TheRule) {
  using O = CompareOutcome;
  // 90 % interval: up to 0.037
  EXPECT_EQ(decide(row_of({0.01, 0.02, 0.03}, 0.04)), O::kEquivalent);
  EXPECT_EQ(decide(row_of({0.010, 0.011, 0.012}, 0.04)),
            O::kEquivalent);  // differs from 0, and inside the margin
  EXPECT_EQ(decide(row_of({0.010, 0.011, 0.012}, 0.0115)),
            O::kDiffers);  // differs from 0, neither inside nor outside
  EXPECT_EQ(decide(row_of({0.010, 0.011, 0.012}, 0.001)), O::kDiffers);  // outside
  EXPECT_EQ(decide(row_of({-0.010, -0.011, -0.012}, 0.001)), O::kDiffers);
  // 95 % interval: from -0.0048
  EXPECT_EQ(decide(row_of({0.01, 0.02, 0.03}, 0.03)), O::kUndetermined);
  EXPECT_EQ(decide(row_of({0.01}, 0.03)), O::kUndetermined);
  EXPECT_EQ(decide(row_of({0}, 0.03)), O::kUndetermined);  // one accuracy may agree by chance
  EXPECT_EQ(decide(row_of({0, 0}, 0.03)), O::kEquivalent);
}

// By Student's law the 95 % interval contains the mean in 95 of 100 experiments; "equivalent" is
// reported for a mean at the margin in 5 of 100, and "differs" for a mean of 0 in 5 of 100 at most.
// The bounds are binomial: a correct implementation exceeds them once in 10^6 on either side.
TEST(Compare, IntervalsAndErrorRatesAreWhatTheySay) {
  constexpr int kTrials = 20000;
  const auto bounds = [](double p) {
    const boost::math::binomial law(kTrials, p);
    return std::pair(boost::math::quantile(law, 1e-6),
                     boost::math::quantile(complement(law, 1e-6)));
  };
  std::mt19937_64 bits(1);
  for (const int seeds : {2, 3, 5, 12}) {
    std::normal_distribution<double> draw(0, 0.7);
    int covered = 0, equivalent = 0, differs = 0;
    for (int trial = 0; trial < kTrials; ++trial) {
      std::vector<double> centred, at_margin;
      for (int i = 0; i < seeds; ++i) centred.push_back(draw(bits));
      for (const double d : centred) at_margin.push_back(d + 2);
      const TrajectoryRow at = row_of(at_margin, 2);
      covered += at.low <= 2 && 2 <= at.high;
      equivalent += decide(at) == CompareOutcome::kEquivalent;
      differs += decide(row_of(centred, 1e-9)) == CompareOutcome::kDiffers;
    }
    const auto [least, most] = bounds(0.95);
    EXPECT_GE(covered, least) << seeds;
    EXPECT_LE(covered, most) << seeds;
    EXPECT_LE(equivalent, bounds(0.05).second) << seeds;
    EXPECT_GE(differs, bounds(0.05).first) << seeds;
    EXPECT_LE(differs, bounds(0.05).second) << seeds;
  }
}

// With the number of seeds that is reported, both outcomes are reached in 80 of 100 experiments.
// The approximation by a shifted Student's law is good to 2 of 100 from five seeds on; the bounds
// allow for that and are as above otherwise.
TEST(Compare, TheSeedsThatAreSaidDecide) {
  constexpr int kTrials = 4000;
  TrajectoryRow spread = row_of({-1, 0, 1}, 1.5);  // standard deviation 1
  const auto n = seeds_for_power(spread);
  ASSERT_TRUE(n);
  ASSERT_GE(*n, 5);
  const boost::math::binomial law(kTrials, 0.78);
  const double least = boost::math::quantile(law, 1e-6);
  std::mt19937_64 bits(2);
  std::normal_distribution<double> draw(0, 1);
  int equivalent = 0, differs = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    std::vector<double> centred, at_margin;
    for (int i = 0; i < *n; ++i) centred.push_back(draw(bits));
    for (const double d : centred) at_margin.push_back(d + 1.5);
    equivalent += decide(row_of(centred, 1.5)) == CompareOutcome::kEquivalent;
    const TrajectoryRow at = row_of(at_margin, 1.5);
    differs += at.low > 0;
  }
  EXPECT_GE(equivalent, least);
  EXPECT_GE(differs, least);
  // No number is given for a single pair, without a margin, or if more than 10000 seeds were
  // needed.
  EXPECT_FALSE(seeds_for_power(row_of({1}, 1.5)));
  EXPECT_FALSE(seeds_for_power(row_of({-1, 0, 1}, 0)));
  EXPECT_FALSE(seeds_for_power(row_of({-1, 0, 1}, 1e-3)));
}

class CompareRuns : public testing::Test {
 protected:
  CompareRuns() {
    std::ofstream(options_.source.scenario = folder_ / "tiny.toml")
        << "seed = 3\n[data]\ntrain = 256\neval = 64\n"
        << tiny::kDense
        << "[optimizer]\nkind = \"sgd\"\nlr = 0.05\n[train]\nbatch = 32\nsteps = 20\n[tpu]\ncores "
           "= 8\n";
    options_.seeds = 3;
  }
  Comparison run() const { return tiny::must(compare(options_)); }
  Folder folder_;
  CompareOptions options_;
};

TEST_F(CompareRuns, IdenticalEnginesNeedOnePair) {
  options_.b.engine.threads = 2;
  const Comparison c = run();
  EXPECT_EQ(c.outcome, CompareOutcome::kIdentical);
  EXPECT_EQ(c.seeds, std::vector<uint64_t>{3});
  EXPECT_EQ(exit_code(c.outcome), 0);
}

TEST_F(CompareRuns, PrecisionIsWithinTheMarginOfSeeds) {
  options_.b.engine.engine = "tpu";
  const Comparison c = run();
  EXPECT_EQ(c.outcome, CompareOutcome::kEquivalent) << to_terminal(c);
  EXPECT_EQ(c.seeds, (std::vector<uint64_t>{3, 4, 5}));
  EXPECT_EQ(c.row.margin_source, "2 standard deviations between 3 seeds of A");
  EXPECT_TRUE(c.notes.empty());
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(c.row.differences[i], c.a.values[i] - c.b.values[i]);
}

TEST_F(CompareRuns, AnotherMeaningDiffers) {
  // A takes the gradient of the mean. B sums the loss per core and takes the mean over cores, which
  // makes its step four times as large.
  options_.settings = {{"optimizer.lr", "0.01"}};
  options_.b.settings = {{"loss.reduction", "sum"}};
  options_.b.engine.engine = "tpu";
  options_.margin = 0.001;
  const Comparison c = run();
  EXPECT_EQ(c.outcome, CompareOutcome::kDiffers) << to_terminal(c);
  EXPECT_EQ(c.row.margin_source, "--margin");
}

TEST_F(CompareRuns, TwoSeedsOfAWideSpreadDoNotDecide) {
  options_.b.settings = {{"optimizer.lr", "0.051"}};
  options_.seeds = 2;
  options_.margin = 1e-4;
  const Comparison c = run();
  EXPECT_EQ(c.outcome, CompareOutcome::kUndetermined) << to_terminal(c);
  EXPECT_EQ(exit_code(c.outcome), 125);
  ASSERT_TRUE(c.needed);
  EXPECT_GT(*c.needed, 2);
}

TEST_F(CompareRuns, WhatThePairsDoNotShareIsSaid) {
  options_.seeds = 2;
  options_.b.settings = {
      {"model.layers.dense1.units", "13"}, {"data.eval", "32"}, {"train.batch", "16"}};
  const Comparison c = run();
  ASSERT_EQ(c.notes.size(), 3u) << to_terminal(c);
  EXPECT_NE(c.notes[0].find("different initial weights"), std::string::npos);
  EXPECT_NE(c.notes[1].find("different samples"), std::string::npos);
  EXPECT_NE(c.notes[2].find("A sees 640 samples, B 320"), std::string::npos);
}

TEST_F(CompareRuns, AnArmThatDivergesDiffers) {
  options_.b.engine.faults = {tiny::must(parse_fault("nan@dense1/kernel.grad,step=2"))};
  const Comparison c = run();
  EXPECT_EQ(c.outcome, CompareOutcome::kDiffers) << to_terminal(c);
  EXPECT_NE(c.headline.find("diverged"), std::string::npos);
  options_.a.engine.faults = {tiny::must(parse_fault("nan@dense1/kernel.grad,step=3"))};
  EXPECT_EQ(run().outcome, CompareOutcome::kUndetermined);
}

}  // namespace
}  // namespace twinrun
