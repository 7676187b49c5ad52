// Tests learning-rate schedules against their formulas in long double, and at their ends.
#include "scenarios/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace twinrun {
namespace {

// Allows one rounding to binary32 (2^-24) of a binary64 value whose own error is far below 2^-40.
constexpr double kAllowed = 0x1p-24 * (1 + 0x1p-16);

void expect_rate(const OptimizerConfig& c, int64_t step, long double want) {
  const double got = learning_rate(c, step);
  EXPECT_LE(std::fabs(got - static_cast<double>(want)),
            kAllowed * std::fabs(static_cast<double>(want)))
      << c.schedule << " step " << step << ": " << got << " " << static_cast<double>(want);
}

OptimizerConfig config(const char* schedule, double lr, int64_t decay_steps) {
  OptimizerConfig c;
  c.schedule = schedule;
  c.lr = lr;
  c.decay_steps = decay_steps;
  return c;
}

TEST(Schedule, Constant) {
  EXPECT_EQ(learning_rate(config("constant", 0.1, 10), 0), 0.1f);
  EXPECT_EQ(learning_rate(config("constant", 0.1, 10), 1'000'000), 0.1f);
}

TEST(Schedule, Exponential) {
  OptimizerConfig c = config("exponential", 0.05, 7);
  c.decay_rate = 0.96;
  for (int64_t step : {0, 1, 6, 7, 8, 13, 14, 500}) {
    c.staircase = false;
    expect_rate(c, step, 0.05L * std::pow(static_cast<long double>(0.96), step / 7.0L));
    c.staircase = true;
    expect_rate(c, step, 0.05L * std::pow(static_cast<long double>(0.96), step / 7));
  }
  EXPECT_EQ(learning_rate(c, 6), 0.05f);
}

TEST(Schedule, Cosine) {
  OptimizerConfig c = config("cosine", 0.3, 1000);
  for (double alpha : {0.0, 0.125}) {
    c.alpha = alpha;
    for (int64_t step : {0, 1, 250, 333, 500, 750, 900, 990}) {
      const long double fallen = (1 + std::cos(std::numbers::pi_v<long double> * step / 1000)) / 2;
      expect_rate(c, step, 0.3L * ((1 - alpha) * fallen + alpha));
    }
    for (int64_t step : {1000, 1001, 1'000'000})
      EXPECT_EQ(learning_rate(c, step), static_cast<float>(0.3 * alpha));
  }
  c.alpha = 0;
  EXPECT_EQ(learning_rate(c, 0), 0.3f);
  EXPECT_EQ(learning_rate(c, 500), 0.15f);
}

// The example of Keras's documentation: 1.0 for the first 100001 steps, 0.5 for the next 10000,
// then 0.1.
TEST(Schedule, Piecewise) {
  OptimizerConfig c = config("piecewise", 1.0, 1);
  c.boundaries = {100000, 110000};
  c.values = {0.5, 0.1};
  EXPECT_EQ(learning_rate(c, 0), 1.0f);
  EXPECT_EQ(learning_rate(c, 100000), 1.0f);
  EXPECT_EQ(learning_rate(c, 100001), 0.5f);
  EXPECT_EQ(learning_rate(c, 110000), 0.5f);
  EXPECT_EQ(learning_rate(c, 110001), 0.1f);
  EXPECT_EQ(learning_rate(c, int64_t{1} << 32), 0.1f);
}

TEST(Schedule, Polynomial) {
  OptimizerConfig c = config("polynomial", 0.1, 100);
  c.end_lr = 0.01;
  for (double power : {1.0, 0.5, 2.0, 0.9}) {
    c.power = power;
    for (int64_t step : {0, 1, 50, 99}) {
      const long double left = 1 - step / 100.0L;
      expect_rate(c, step, (0.1L - 0.01L) * std::pow(left, power) + 0.01L);
    }
    EXPECT_EQ(learning_rate(c, 100), 0.01f);
    EXPECT_EQ(learning_rate(c, 101), 0.01f);
  }
}

TEST(Schedule, PolynomialCycles) {
  OptimizerConfig c = config("polynomial", 0.1, 100);
  c.end_lr = 0.01;
  c.cycle = true;
  for (int64_t step : {0, 1, 100, 101, 150, 200, 201, 1234}) {
    const int64_t whole = step == 0 ? 100 : (step + 99) / 100 * 100;
    expect_rate(c, step, (0.1L - 0.01L) * (1 - step / static_cast<long double>(whole)) + 0.01L);
  }
  EXPECT_EQ(learning_rate(c, 200), 0.01f);
}

// Warmup is linear from 0 to lr; the schedule then counts its steps from the end of the warmup.
TEST(Schedule, WarmupPrecedesAnySchedule) {
  for (const char* schedule : {"constant", "exponential", "cosine", "polynomial", "piecewise"}) {
    OptimizerConfig c = config(schedule, 0.4, 50);
    c.boundaries = {20};
    c.values = {0.04};
    OptimizerConfig warm = c;
    warm.warmup_steps = 10;
    EXPECT_EQ(learning_rate(warm, 0), 0.0f);
    for (int64_t step = 1; step < 10; ++step) expect_rate(warm, step, 0.4L * step / 10);
    for (int64_t step = 0; step < 80; ++step)
      EXPECT_EQ(learning_rate(warm, step + 10), learning_rate(c, step)) << schedule << " " << step;
  }
}

TEST(Schedule, HugeStepsAndPeriods) {
  OptimizerConfig c = config("polynomial", 0.1, INT64_MAX);
  c.cycle = true;
  EXPECT_EQ(learning_rate(c, 4294967295), 0.1f);
  c.decay_steps = 1;
  EXPECT_EQ(learning_rate(c, 4294967295), 1e-4f);
  c = config("exponential", 0.1, 1);
  EXPECT_EQ(learning_rate(c, 4294967295), 0.0f);
}

}  // namespace
}  // namespace twinrun
