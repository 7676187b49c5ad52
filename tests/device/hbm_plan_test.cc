// Tests of the HBM plan of one core (arguments, lifetimes, peak, rematerialisation) on models small
// enough to count by hand.
#include "device/hbm_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/program/models.h"

namespace twinrun::tpu {
namespace {

constexpr int64_t kTile = 8 * 128 * 4;

TEST(HbmPlan, ArgumentsOfASmallModelByHand) {
  const HbmPlan plan = plan_hbm(training_step(models::mlp(8, models::adam())));
  // Kernels [12,5] and [5,3]: 12 rows take two tiles, 5 rows one. Biases [5] and [3]: T(256) each.
  EXPECT_EQ(plan.at_peak.of(HbmUse::kWeights), 3 * kTile + 2 * 256 * 4);
  EXPECT_EQ(plan.at_peak.of(HbmUse::kSlots), 2 * plan.at_peak.of(HbmUse::kWeights));
  EXPECT_EQ(plan.at_peak.of(HbmUse::kStatistics), 2 * 256 * 4);  // adam's two powers
  EXPECT_EQ(plan.at_peak.unpadded[static_cast<size_t>(HbmUse::kWeights)],
            (12 * 5 + 5 + 5 * 3 + 3) * 4);
  EXPECT_EQ(plan.used(), plan.arguments() + plan.program());
}

TEST(HbmPlan, ThePeakIsTheLargestSumOfWhatIsHeld) {
  const HbmPlan plan = plan_hbm(training_step(models::cnn(16, models::momentum())));
  ASSERT_GT(plan.units, 10);
  int64_t most = 0;
  for (int unit = 0; unit < plan.units; ++unit) {
    int64_t held = 0;
    for (const HbmBuffer& b : plan.buffers) {
      EXPECT_LE(b.first, b.last) << b.op;
      EXPECT_GE(b.bytes, b.unpadded()) << b.op;
      if (b.first <= unit && unit <= b.last) held += b.bytes;
    }
    most = std::max(most, held);
    if (unit == plan.peak) {
      EXPECT_EQ(held, plan.used());
    }
  }
  EXPECT_EQ(most, plan.used());
}

// The gradient of every weight has a buffer, but an update needs none: it is written in place, over
// the old state.
TEST(HbmPlan, UpdatesLieWhereTheStateWas) {
  const HbmPlan plan =
      plan_hbm(training_step(shard(models::mlp(16, models::adam()), {.cores = 8})));
  int gradients = 0;
  for (const HbmBuffer& b : plan.buffers) {
    gradients += b.use == HbmUse::kGradients;
    EXPECT_EQ(b.op.find(".update"), std::string::npos) << b.op;
  }
  EXPECT_EQ(gradients, 4);
}

TEST(HbmPlan, ActivationsGrowWithTheBatchAndWeightsDoNot) {
  const HbmPlan small = plan_hbm(training_step(models::cnn(128, models::momentum())));
  const HbmPlan large = plan_hbm(training_step(models::cnn(256, models::momentum())));
  EXPECT_EQ(large.arguments(), small.arguments());
  EXPECT_NEAR(static_cast<double>(large.at_peak.of(HbmUse::kActivations)),
              2.0 * static_cast<double>(small.at_peak.of(HbmUse::kActivations)),
              0.1 * static_cast<double>(small.at_peak.of(HbmUse::kActivations)));
}

TEST(HbmPlan, SixteenBitActivationsHalve) {
  const Program step = training_step(models::cnn(256, models::momentum()));
  const HbmPlan full = plan_hbm(step), half = plan_hbm(step, {.bf16_activations = true});
  EXPECT_EQ(half.arguments(), full.arguments());
  EXPECT_LT(half.program(), full.program() * 6 / 10);
}

TEST(HbmPlan, RematerialisationFreesAndHasAPrice) {
  const Program step = training_step(models::cnn(512, models::momentum()));
  const HbmPlan plain = plan_hbm(step);
  const HbmPlan segments = plan_hbm(step, {.rematerialise = Rematerialise::kSegments});
  EXPECT_EQ(plain.recomputed_flops, 0);
  EXPECT_LE(segments.used(), plain.used());
  EXPECT_EQ(segments.used() < plain.used(), segments.recomputed_flops > 0);
  for (const HbmBuffer& b : segments.buffers) EXPECT_LE(b.first, b.last) << b.op;
}

}  // namespace
}  // namespace twinrun::tpu
