// Tests the second answer of a verdict: what the drift does to what is learnt, beside the class,
// which rests on the mechanism. Tests the table of verdicts as well: each row decides some
// evidence, and the page prints it.
#include <gtest/gtest.h>

#include <set>

#include "harness/diagnose/classify.h"
#include "harness/diagnose/verdict_rows.h"
#include "tests/harness/evidence.h"

namespace twinrun {
namespace {

using namespace by_hand;

// The cause of the drift does not depend on whether it matters: the program means the same, and
// every op is inside its bound.
TEST(ClassifyEffect, UndecidedDriftOfEqualMeaning) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", PairedOutcome::kUndecided)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  EXPECT_EQ(j.effect, Effect::kUndecided);
  EXPECT_TRUE(contains(j.effect_text, "which is not decided")) << j.effect_text;
}

TEST(ClassifyEffect, PrecisionThatCosts) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  // A standard deviation between seeds is larger, so it is not called harmful.
  EXPECT_EQ(j.effect, Effect::kSeedNoise);
  EXPECT_TRUE(contains(j.headline, "0.0100 higher (worse), [+0.00900, +0.0110]")) << j.headline;
  EXPECT_TRUE(contains(j.next_steps.back(), "tpu.precision=highest")) << j.next_steps.back();
}

// None of the examined causes explains an effect that is certainly larger than what another seed
// does.
TEST(ClassifyEffect, LargeDriftWithoutACause) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful, 0.4)};
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
  e.trajectories = {trajectory("T - R", PairedOutcome::kUndecided, 0.002),
                    trajectory("S - R", PairedOutcome::kHarmful, 0.002)};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_EQ(j.effect, Effect::kHarmful);
  EXPECT_TRUE(contains(j.headline, "held-out loss is 0.00200 higher (worse), [+0.00100, +0.00300]"))
      << j.headline;
  e.trajectories[1].outcome = PairedOutcome::kBeneficial;
  expect_verdict(classify(e), VerdictClass::kSharding, 10);
  for (TrajectoryRow& row : e.trajectories) {
    row.margin = 0.05;
    row.margin_source = "diagnose.margin";
    row.outcome = PairedOutcome::kWithinMargin;
  }
  j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 0);
  EXPECT_EQ(j.effect, Effect::kWithinMargin);
  EXPECT_TRUE(contains(j.effect_text, "diagnose.margin declares a margin of 0.0500"))
      << j.effect_text;
  // The engine's own effect is beyond the margin.
  e.trajectories[0].outcome = PairedOutcome::kHarmful;
  expect_verdict(classify(e), VerdictClass::kSharding, 10);
}

// The metric in which the subject is worse decides the headline.
TEST(ClassifyEffect, TheWorseMetricSpeaks) {
  Evidence e = clean();
  add_meaning(e);
  TrajectoryRow accuracy = trajectory("S - R", PairedOutcome::kHarmful, -0.02);
  accuracy.metric = "held-out accuracy";
  e.trajectories = {trajectory("S - R", PairedOutcome::kBeneficial, -0.1), accuracy,
                    trajectory("T - R", PairedOutcome::kUndecided)};
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
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  EXPECT_EQ(j.effect, Effect::kUndecided);
  EXPECT_TRUE(j.effect_text.starts_with("the reference has not learnt")) << j.effect_text;
  EXPECT_TRUE(contains(j.effect_text, "train.steps=300")) << j.effect_text;
  add_meaning(e);
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected),
                    trajectory("S - R", PairedOutcome::kNoneDetected)};
  j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_TRUE(contains(j.headline, "the reference has not learnt")) << j.headline;
  e.trajectories[1].outcome = PairedOutcome::kBeneficial;
  j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_EQ(j.effect, Effect::kUndecided);
  EXPECT_TRUE(contains(j.effect_text, "the reference has not learnt")) << j.effect_text;
}

// Evidence in which a row decides, by the name of the row.
std::vector<std::pair<std::string_view, Evidence>> evidence_by_row() {
  std::vector<std::pair<std::string_view, Evidence>> out;
  const auto add = [&](std::string_view row, Evidence e) -> Evidence& {
    out.emplace_back(row, std::move(e));
    return out.back().second;
  };
  add("reference_diverges", clean()).reference_diverges_at = 3;
  add("reference_not_finite", clean()).reference_non_finite = FirstNonFinite{};
  add("engine_failed", clean()).engine_failure = Error{"exited", "exec:engine", ""};
  add("emulator_fails", clean()).emulator_fails = true;
  add("violation", clean()).violations = {violation("dense1/kernel.grad", 3, 0, 8)};
  add("unrepeatable", clean()).match = matched(Identification::Outcome::kUnrepeatable);
  Evidence& tensors = add("tensor_outside", clean());
  tensors.match = matched(Identification::Outcome::kUnexplained);
  tensors.level = 'C';
  add("replicas_diverge", clean()).replica_split = ReplicaSplit{};
  add("user_sharding", clean()).user_sharding.emplace().other = {{.name = "dense1/kernel"}};
  add("identical", clean()).identical = true;
  Evidence& formula = add("other_formula", clean());
  formula.match = matched(Identification::Outcome::kExplained);
  formula.match->explanations.front().parts.front().formula.emplace().values = {{"loss.scale", ""}};
  add("other_program", clean()).match = matched(Identification::Outcome::kUnexplained);
  add("hidden_state", clean()).hidden_state.emplace().promised = false;
  add("quick", clean()).quick = true;
  Evidence& promise = add("promise_broken", clean());
  promise.subject_diverges_at = 1;
  promise.subject.deterministic = true;
  add("subject_not_finite", clean()).subject_non_finite = FirstNonFinite{};
  add("not_judged", clean()).unbounded = {"dense1/dot_general"};

  const auto with_rows = [](Evidence e, PairedOutcome tr, PairedOutcome sr) {
    e.trajectories = {trajectory("T - R", tr), trajectory("S - R", sr)};
    return e;
  };
  Evidence script = clean();
  script.match = matched(Identification::Outcome::kExplained);
  add("script", with_rows(script, PairedOutcome::kUndecided, PairedOutcome::kHarmful));
  add("script_undecided", with_rows(script, PairedOutcome::kHarmful, PairedOutcome::kUndecided));

  Evidence sharding = clean();
  add_meaning(sharding);
  add("sharding_matters", with_rows(sharding, PairedOutcome::kUndecided, PairedOutcome::kHarmful));
  add("sharding", with_rows(sharding, PairedOutcome::kNoneDetected, PairedOutcome::kNoneDetected));
  add("sharding_undecided",
      with_rows(sharding, PairedOutcome::kHarmful, PairedOutcome::kUndecided));

  const Evidence drift = with_rows(clean(), PairedOutcome::kHarmful, PairedOutcome::kNoneDetected);
  add("ensemble_outside", drift).ensembles.emplace_back().outcome = EnsembleOutcome::kOutside;
  add("imported", clean()).held_out = false;
  add("not_tested", clean());
  add("beyond_rounding", drift).trajectories.front().must_see = 0;
  add("noise", drift);
  return out;
}

TEST(VerdictRows, EachDecidesSomeEvidence) {
  std::set<std::string_view> decided;
  for (const auto& [name, evidence] : evidence_by_row()) {
    const VerdictRow& row = deciding_row(evidence);
    EXPECT_EQ(row.name, name);
    const Judgement j = classify(evidence);
    EXPECT_EQ(j.verdict, row.verdict) << name;
    EXPECT_FALSE(j.headline.empty() || j.confidence.empty() || j.findings.empty()) << name;
    decided.insert(row.name);
  }
  EXPECT_EQ(decided.size(), verdict_rows().size());
}

// --fail-on asks whether the engine or its program is at fault. Where that stays open, it is not
// answered by the class that was left out.
TEST(VerdictRows, WhatStaysOpenIsNotGood) {
  using Judges = VerdictRow::Judges;
  for (const VerdictRow& row : verdict_rows()) {
    const bool clears = row.verdict == VerdictClass::kNoise ||
                        row.verdict == VerdictClass::kIdentical ||
                        row.verdict == VerdictClass::kSharding;
    if (clears) EXPECT_EQ(row.judges, Judges::kBoth) << row.name;
  }
  for (const char* open : {"reference_diverges", "engine_failed", "other_program", "not_judged",
                           "subject_not_finite", "unrepeatable"})
    EXPECT_NE(find_verdict_row(open)->judges, Judges::kBoth) << open;
  // A good commit of a bisection with --quick.
  EXPECT_EQ(find_verdict_row("quick")->judges, Judges::kBoth);
  EXPECT_EQ(find_verdict_row("none"), nullptr);
}

}  // namespace
}  // namespace twinrun
