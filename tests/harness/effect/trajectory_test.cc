// Tests paired differences by hand, with t quantiles from a table (Student, two-sided 95 % and 90
// %).
#include "harness/effect/trajectory.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace twinrun {
namespace {

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
// df = 2: t(0.975), t(0.95); df = 1: t(0.975), t(0.95).
constexpr double kWide2 = 4.30265273, kNarrow2 = 2.91998558;
constexpr double kWide1 = 12.7062047, kNarrow1 = 6.31375151;

TrajectoryRow compare(const std::vector<double>& a, const std::vector<double>& b, double margin) {
  return compare_paired("T - R", "what the user sees", a, b, {margin, "diagnose.margin", true});
}

TEST(Trajectory, IntervalIsStudents) {
  // Differences 0.01, 0.02, 0.03: mean 0.02, deviation 0.01, error 0.01 / sqrt(3).
  const TrajectoryRow row = compare({1.01, 2.02, 3.03}, {1, 2, 3}, 0.04);
  const double error = 0.01 / std::sqrt(3.0);
  EXPECT_EQ(row.pair, "T - R");
  EXPECT_EQ(row.meaning, "what the user sees");
  EXPECT_EQ(row.margin, 0.04);
  EXPECT_EQ(row.margin_source, "diagnose.margin");
  ASSERT_EQ(row.differences.size(), 3u);
  EXPECT_NEAR(row.mean, 0.02, 1e-12);
  EXPECT_NEAR(row.low, 0.02 - kWide2 * error, 1e-9);
  EXPECT_NEAR(row.high, 0.02 + kWide2 * error, 1e-9);
  // The 90 % interval is the one that the two one-sided tests use.
  EXPECT_NEAR(row.tost_low, 0.02 - kNarrow2 * error, 1e-9);
  EXPECT_NEAR(row.tost_high, 0.02 + kNarrow2 * error, 1e-9);
  EXPECT_EQ(row.outcome, PairedOutcome::kEquivalent);
}

TEST(Trajectory, TwoPairsHaveOneDegreeOfFreedom) {
  const TrajectoryRow row = compare({0.1, 0.3}, {0, 0}, 5);
  const double error = 0.1;  // deviation sqrt(0.02), over sqrt(2)
  EXPECT_NEAR(row.low, 0.2 - kWide1 * error, 1e-7);
  EXPECT_NEAR(row.high, 0.2 + kWide1 * error, 1e-7);
  EXPECT_EQ(row.outcome, PairedOutcome::kEquivalent);
  EXPECT_EQ(compare({0.1, 0.3}, {0, 0}, 0.2 + kNarrow1 * error - 1e-6).outcome,
            PairedOutcome::kUndetermined);
  EXPECT_EQ(compare({0.1, 0.3}, {0, 0}, 0.2 + kNarrow1 * error + 1e-6).outcome,
            PairedOutcome::kEquivalent);
}

// "Equivalent" is two one-sided tests at 5 %: the 90 % interval lies inside the margin.
TEST(Trajectory, EquivalentNeedsThe90PercentIntervalInside) {
  const double edge = 0.02 + kNarrow2 * 0.01 / std::sqrt(3.0);
  EXPECT_EQ(compare({0.01, 0.02, 0.03}, {0, 0, 0}, edge + 1e-7).outcome,
            PairedOutcome::kEquivalent);
  EXPECT_EQ(compare({0.01, 0.02, 0.03}, {0, 0, 0}, edge - 1e-7).outcome,
            PairedOutcome::kUndetermined);
  EXPECT_EQ(compare({-0.01, -0.02, -0.03}, {0, 0, 0}, edge + 1e-7).outcome,
            PairedOutcome::kEquivalent);
  EXPECT_EQ(compare({-0.01, -0.02, -0.03}, {0, 0, 0}, edge - 1e-7).outcome,
            PairedOutcome::kUndetermined);
}

// "Outside" means that the whole 95 % interval lies beyond the margin, on either side.
TEST(Trajectory, OutsideNeedsThe95PercentIntervalBeyond) {
  const double edge = 1 - kWide2 * 0.01 / std::sqrt(3.0);
  EXPECT_EQ(compare({0.99, 1.00, 1.01}, {0, 0, 0}, edge - 1e-7).outcome, PairedOutcome::kOutside);
  EXPECT_EQ(compare({0.99, 1.00, 1.01}, {0, 0, 0}, edge + 1e-7).outcome,
            PairedOutcome::kUndetermined);
  EXPECT_EQ(compare({-0.99, -1.00, -1.01}, {0, 0, 0}, edge - 1e-7).outcome,
            PairedOutcome::kOutside);
  EXPECT_EQ(compare({-0.99, -1.00, -1.01}, {0, 0, 0}, edge + 1e-7).outcome,
            PairedOutcome::kUndetermined);
}

TEST(Trajectory, TheSignIsSubjectMinusReference) {
  EXPECT_GT(compare({2, 2.1}, {1, 1}, 9).mean, 0);
  EXPECT_LT(compare({1, 1.1}, {2, 2}, 9).mean, 0);
}

// Equal differences have no deviation. The interval is a point and must still be judged.
TEST(Trajectory, ConstantDifference) {
  EXPECT_EQ(compare({1.5, 2.5, 3.5}, {1, 2, 3}, 0.6).outcome, PairedOutcome::kEquivalent);
  EXPECT_EQ(compare({1.5, 2.5, 3.5}, {1, 2, 3}, 0.4).outcome, PairedOutcome::kOutside);
}

TEST(Trajectory, OneSeedDecidesNothing) {
  EXPECT_EQ(compare({1.0001}, {1}, 100).outcome, PairedOutcome::kUndetermined);
  const TrajectoryRow row = compare({9}, {1}, 0.1);
  EXPECT_EQ(row.outcome, PairedOutcome::kUndetermined);
  EXPECT_EQ(row.low, row.mean);
  EXPECT_EQ(row.high, row.mean);
}

TEST(Trajectory, NoMarginIsNeverEquivalent) {
  EXPECT_NE(compare({1.001, 1.002, 0.999}, {1, 1, 1}, 0).outcome, PairedOutcome::kEquivalent);
}

TEST(Trajectory, EqualLossesAreIdenticalEvenWithOneSeed) {
  EXPECT_EQ(compare({1.25}, {1.25}, 0).outcome, PairedOutcome::kIdentical);
  const TrajectoryRow row = compare({1, 2, 3}, {1, 2, 3}, 0.1);
  EXPECT_EQ(row.outcome, PairedOutcome::kIdentical);
  EXPECT_EQ(row.low, 0);
  EXPECT_EQ(row.high, 0);
  // One seed that differs by one unit in the last place is not identity.
  EXPECT_NE(compare({1, 2, std::nextafter(3.0, 4.0)}, {1, 2, 3}, 0.1).outcome,
            PairedOutcome::kIdentical);
}

TEST(Trajectory, NaNAndInfinityAreOutside) {
  EXPECT_EQ(compare({kNotANumber, 1, 1}, {1, 1, 1}, 1e9).outcome, PairedOutcome::kOutside);
  EXPECT_EQ(compare({INFINITY, 1, 1}, {1, 1, 1}, 1e9).outcome, PairedOutcome::kOutside);
  EXPECT_EQ(compare({kNotANumber}, {1}, 1e9).outcome, PairedOutcome::kOutside);
}

TEST(ChooseMargin, TheUsersComesFirst) {
  const Margin m = choose_margin(0.05, {1, 2, 3});
  EXPECT_EQ(m.value, 0.05);
  EXPECT_TRUE(m.of_user);
  EXPECT_EQ(m.source, "diagnose.margin");
}

TEST(ChooseMargin, TwoStandardDeviationsBetweenSeeds) {
  const Margin m = choose_margin(0, {1.0, 1.1, 1.2});
  EXPECT_NEAR(m.value, 0.2, 1e-12);
  EXPECT_FALSE(m.of_user);
  EXPECT_NE(m.source.find("3 seeds"), std::string::npos) << m.source;
}

TEST(ChooseMargin, OneSeedGivesNone) {
  const Margin m = choose_margin(0, {1.0});
  EXPECT_EQ(m.value, 0);
  EXPECT_NE(m.source.find("one seed"), std::string::npos) << m.source;
}

}  // namespace
}  // namespace twinrun
