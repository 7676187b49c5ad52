// Tests the second answer of a verdict: what the drift does to what is learnt, beside the class,
// which rests on the mechanism.
#include <gtest/gtest.h>

#include "harness/diagnose/classify.h"
#include "tests/harness/evidence.h"

namespace twinrun {
namespace {

using namespace by_hand;

// The cause of the drift does not depend on whether it matters: the program means the same, and
// every op is inside its bound.
TEST(ClassifyEffect, UndecidedDriftOfEqualMeaning) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", "undecided")};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  EXPECT_EQ(j.effect, Effect::kUndecided);
  EXPECT_TRUE(contains(j.effect_text, "which is not decided")) << j.effect_text;
}

TEST(ClassifyEffect, PrecisionThatCosts) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", "harmful")};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  EXPECT_EQ(j.effect, Effect::kHarmful);
  EXPECT_TRUE(contains(j.headline, "0.0100 higher (worse), [+0.00900, +0.0110]")) << j.headline;
  EXPECT_TRUE(contains(j.next_steps.back(), "tpu.precision=highest")) << j.next_steps.back();
}

// None of the examined causes explains an effect that is certainly larger than what another seed
// does.
TEST(ClassifyEffect, LargeDriftWithoutACause) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", "harmful", 0.4)};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  EXPECT_TRUE(contains(j.headline, "more than what another seed does")) << j.headline;
  EXPECT_FALSE(j.next_steps.empty());
  e.trajectories[0].margin = 0.05;
  e.trajectories[0].margin_source = "diagnose.margin";
  j = classify(e);
  EXPECT_TRUE(contains(j.headline, "the margin that diagnose.margin declares")) << j.headline;
}

// A change of meaning is SHARDING wherever the seeds show it, however small it is. A margin acquits
// only if it is declared.
TEST(ClassifyEffect, ASmallEffectOfAnotherMeaningIsSharding) {
  Evidence e = clean();
  add_meaning(e);
  e.trajectories = {trajectory("T - R", "undecided", 0.002), trajectory("S - R", "harmful", 0.002)};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_EQ(j.effect, Effect::kHarmful);
  EXPECT_TRUE(contains(j.headline, "held-out loss is 0.00200 higher (worse), [+0.00100, +0.00300]"))
      << j.headline;
  e.trajectories[1].outcome = "beneficial";
  expect_verdict(classify(e), VerdictClass::kSharding, 10);
  for (TrajectoryRow& row : e.trajectories) {
    row.margin = 0.05;
    row.margin_source = "diagnose.margin";
    row.outcome = "within the margin";
  }
  j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 0);
  EXPECT_EQ(j.effect, Effect::kWithinMargin);
  EXPECT_TRUE(contains(j.effect_text, "diagnose.margin declares a margin of 0.0500"))
      << j.effect_text;
  // The engine's own effect is beyond the margin.
  e.trajectories[0].outcome = "harmful";
  expect_verdict(classify(e), VerdictClass::kSharding, 10);
}

// The metric in which the subject is worse decides the headline.
TEST(ClassifyEffect, TheWorseMetricSpeaks) {
  Evidence e = clean();
  add_meaning(e);
  TrajectoryRow accuracy = trajectory("S - R", "harmful", -0.02);
  accuracy.metric = "held-out accuracy";
  e.trajectories = {trajectory("S - R", "beneficial", -0.1), accuracy,
                    trajectory("T - R", "undecided")};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_EQ(j.effect, Effect::kHarmful);
  EXPECT_EQ(j.effect_metric, "held-out accuracy");
  EXPECT_TRUE(contains(j.effect_text, "2.00 points lower (worse)")) << j.effect_text;
}

// A reference that learns nothing shows no effect. That the runs diverge is detected nevertheless.
TEST(ClassifyEffect, AReferenceThatHasNotLearnt) {
  Evidence e = clean();
  e.learning = Learning{.reference = 2.31,
                        .spread = 0.02,
                        .initial = 2.33,
                        .prior = 2.303,
                        .learnt = false,
                        .steps_to_try = 300};
  e.trajectories = {trajectory("T - R", "none detected")};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  EXPECT_EQ(j.effect, Effect::kUndecided);
  EXPECT_TRUE(j.effect_text.starts_with("the reference has not learnt")) << j.effect_text;
  EXPECT_TRUE(contains(j.effect_text, "train.steps=300")) << j.effect_text;
  add_meaning(e);
  e.trajectories = {trajectory("T - R", "none detected"), trajectory("S - R", "none detected")};
  j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  EXPECT_TRUE(contains(j.headline, "the reference has not learnt")) << j.headline;
  e.trajectories[1].outcome = "beneficial";
  j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_EQ(j.effect, Effect::kUndecided);
  EXPECT_TRUE(contains(j.effect_text, "the reference has not learnt")) << j.effect_text;
}

}  // namespace
}  // namespace twinrun
