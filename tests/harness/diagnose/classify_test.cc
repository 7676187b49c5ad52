// Tests the table of docs/method/diagnosis.md row by row, on evidence made by hand: the class, its
// exit code, and that the headline names what a reader needs first.
#include "harness/diagnose/classify.h"

#include <gtest/gtest.h>

#include <cmath>

#include "harness/diagnose/findings.h"
#include "tests/harness/evidence.h"

namespace twinrun {
namespace {

using namespace by_hand;

// If R differs from R', nothing else is concluded, whatever else was observed.
TEST(Classify, NondeterministicReference) {
  Evidence e = clean();
  e.reference_diverges_at = 17;
  e.reference_diverges_op = "dense1/dot_general";
  e.violations = {violation("dense2/kernel.grad", 3, 0, 8)};
  add_meaning(e);
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNondeterministic, 30);
  EXPECT_TRUE(contains(j.headline, "step 17")) << j.headline;
  EXPECT_TRUE(contains(j.headline, "dense1/dot_general")) << j.headline;
  // The subject is not accused: the control that failed is the finding.
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].verdict, VerdictClass::kNondeterministic);
  EXPECT_EQ(j.findings[0].reproduce, e.command);
  EXPECT_FALSE(j.findings[0].number_text.empty());
}

TEST(Classify, DivergingReference) {
  Evidence e = clean();
  e.reference_non_finite = FirstNonFinite{6, 0, "loss/value", "forward", "Inf"};
  e.reference_non_finite_run = "S";
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  EXPECT_TRUE(contains(j.headline, "loss/value first produces Inf at step 6 (reference, sharded)"))
      << j.headline;
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].op, "loss/value");
  EXPECT_EQ(j.findings[0].step, 6);
  EXPECT_FALSE(j.next_steps.empty());
  Finding f = j.findings[0];
  const float losses[] = {1.0f, 1.9e36f, INFINITY};
  tell_losses(f, losses);
  EXPECT_EQ(f.number_text, "loss 1.90e+36 at step 1, inf at step 2");
  EXPECT_FALSE(f.bound_source.empty());
}

TEST(Classify, EngineBugOnOneCore) {
  Evidence e = clean();
  e.violations = {violation("dense2/kernel.grad", 57, 2, 1)};
  e.violations_run = "T";
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  EXPECT_TRUE(contains(j.headline, "The emulated TPU computes dense2/kernel.grad wrong"))
      << j.headline;
  EXPECT_TRUE(contains(j.headline, "step 57")) << j.headline;
  EXPECT_TRUE(contains(j.headline, "core 2")) << j.headline;
  EXPECT_TRUE(contains(j.confidence, "certain")) << j.confidence;
  ASSERT_EQ(j.findings.size(), 1u);
  const Finding& f = j.findings[0];
  EXPECT_EQ(f.verdict, VerdictClass::kEngineBug);
  EXPECT_EQ(f.cause, "engine:dense2/kernel.grad");
  EXPECT_EQ(f.op, "dense2/kernel.grad");
  EXPECT_EQ(f.op_kind, "dot_general");
  EXPECT_EQ(f.phase, "gradient");
  EXPECT_EQ(f.step, 57);
  EXPECT_EQ(f.core, 2);
  EXPECT_EQ(f.number, 7);
  EXPECT_EQ(f.bound, 1e-6);
  EXPECT_EQ(f.number_text, "error 7.00; allowed 1.00e-06 (7.00 million times)");
  EXPECT_TRUE(contains(f.bound_source, "running error analysis")) << f.bound_source;
  EXPECT_EQ(f.level, 'A');
  EXPECT_EQ(f.reproduce, e.command);
  EXPECT_TRUE(contains(f.sentence, "8 times the expected value")) << f.sentence;
  EXPECT_TRUE(contains(f.sentence, "12 of 640 elements")) << f.sentence;
  EXPECT_TRUE(contains(f.hex, "0x41000000")) << f.hex;  // 8
  EXPECT_TRUE(contains(f.hex, "0x3f800000")) << f.hex;  // 1
}

TEST(Classify, EngineBugOnAllCoresAndInACollective) {
  Evidence e = clean();
  e.violations = {violation("dense1/kernel.grad.all_reduce", 0, -1, 1)};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  EXPECT_TRUE(contains(j.headline, "in the all-reduce, whose result all cores share"))
      << j.headline;
  EXPECT_FALSE(j.findings.at(0).core);
  e.violations = {violation("dense1/dot_general", 0, 0, 8)};
  j = classify(e);
  EXPECT_TRUE(contains(j.headline, "all cores")) << j.headline;
  EXPECT_FALSE(j.findings.at(0).core);
}

// There is one finding per op, in the order of execution; the headline counts them.
TEST(Classify, SeveralOps) {
  Evidence e = clean();
  e.violations = {violation("dense2/kernel.grad", 3, 0, 8),
                  violation("dense1/kernel.grad", 3, 1, 1),
                  violation("dense2/kernel.grad", 4, 0, 8)};
  const Judgement j = classify(e);
  ASSERT_EQ(j.findings.size(), 2u);
  EXPECT_EQ(j.findings[0].op, "dense2/kernel.grad");
  EXPECT_EQ(j.findings[0].step, 3);
  EXPECT_EQ(j.findings[1].op, "dense1/kernel.grad");
  EXPECT_TRUE(contains(j.headline, "2 ops are affected.")) << j.headline;
  for (int i = 0; i < 10; ++i) e.violations.push_back(violation(std::to_string(i), 4, 0, 8));
  EXPECT_TRUE(contains(classify(e).headline, "12 ops are affected, the first 8 are listed."))
      << classify(e).headline;
  EXPECT_EQ(classify(e).findings.size(), 8u);
}

TEST(Classify, BrokenLink) {
  Evidence e = clean();
  Violation v = violation("dense2/kernel.update", 4, 0, 1);
  v.what = Violation::What::kLink;
  v.link = "operand 0 is not what dense2/kernel wrote";
  e.violations = {v};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  EXPECT_TRUE(contains(j.findings.at(0).sentence, v.link)) << j.findings[0].sentence;
  EXPECT_TRUE(contains(j.findings.at(0).bound_source, "bits must be equal"));
}

TEST(Classify, UnlocalisedEngineBugSaysSo) {
  Evidence e = clean();
  e.violations = {violation("dense2/kernel.grad", 20, 0, 8)};
  e.localised = false;
  const Judgement j = classify(e);
  ASSERT_FALSE(j.notes.empty());
  EXPECT_TRUE(contains(j.notes[0], "may begin earlier")) << j.notes[0];
}

// The headline is the most severe class; the sharding is listed as well.
TEST(Classify, EngineBugBesideSharding) {
  Evidence e = clean();
  add_meaning(e);
  e.violations = {violation("dense2/kernel.grad", 1, 0, 8)};
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful),
                    trajectory("S - R", PairedOutcome::kHarmful)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  EXPECT_TRUE(contains(j.headline, "reduction 90%")) << j.headline;
  ASSERT_EQ(j.findings.size(), 3u);
  EXPECT_EQ(j.findings[0].verdict, VerdictClass::kEngineBug);
  EXPECT_EQ(j.findings[1].verdict, VerdictClass::kSharding);
  EXPECT_EQ(j.findings[1].cause, "reduction");
  ASSERT_FALSE(j.notes.empty());
  EXPECT_TRUE(contains(j.notes.back(), "not judged beside")) << j.notes.back();
}

TEST(Classify, EvidenceLevelWithoutATrace) {
  Evidence e = clean();
  e.level = 'C';
  e.violations = {violation("dense2/kernel.grad", 1, 0, 8)};
  EXPECT_EQ(classify(e).findings.at(0).level, 'C');
}

TEST(Classify, Identical) {
  Evidence e = clean();
  e.identical = true;
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kIdentical, 0);
  EXPECT_TRUE(contains(j.headline, "bit for bit")) << j.headline;
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].reproduce, e.command);
  // --quick may report this, too.
  e.quick = true;
  expect_verdict(classify(e), VerdictClass::kIdentical, 0);
}

TEST(Classify, QuickConcludesNoNoise) {
  Evidence e = clean();
  e.quick = true;
  e.trajectories = {trajectory("T - R", PairedOutcome::kUndecided)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  ASSERT_FALSE(j.next_steps.empty());
  EXPECT_TRUE(contains(j.next_steps[0], "--quick")) << j.next_steps[0];
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "undecided");
  // An engine bug is one with --quick, too.
  e.violations = {violation("dense2/kernel.grad", 1, 0, 8)};
  expect_verdict(classify(e), VerdictClass::kEngineBug, 20);
}

TEST(Classify, Sharding) {
  Evidence e = clean();
  add_meaning(e);
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful, 0.4),
                    trajectory("S - R", PairedOutcome::kHarmful, 0.25)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_TRUE(contains(j.headline, "reduction 90%")) << j.headline;
  EXPECT_TRUE(contains(j.headline, "0.250 higher (worse), [+0.249, +0.251]")) << j.headline;
  ASSERT_EQ(j.findings.size(), 2u);
  EXPECT_EQ(j.findings[0].verdict, VerdictClass::kSharding);
  EXPECT_EQ(j.findings[0].cause, "reduction");
  EXPECT_EQ(j.findings[0].share, 0.9);
  EXPECT_EQ(j.findings[1].cause, "batch_norm");
  EXPECT_EQ(j.findings[1].share, 0.1);
  EXPECT_TRUE(contains(j.next_steps.at(0), "tpu.reduction")) << j.next_steps[0];
  EXPECT_TRUE(contains(j.findings[0].number_text,
                       "held-out loss is moved by +0.250 by sharding alone, on the reference, "
                       "interval [+0.249, +0.251], in 3 paired seeds: harmful"))
      << j.findings[0].number_text;
  EXPECT_EQ(j.findings[0].bound_source,
            "no margin is declared: an effect is one whose interval leaves 0");
  EXPECT_TRUE(contains(
      j.findings[0].evidence.at(0),
      "sharding changes the gradient of one step by 50.0%, and by 10.0% with this cause undone"))
      << j.findings[0].evidence[0];
}

// The most important cause comes first, whatever the order of the ablations.
TEST(Classify, SharingCausesAreSortedByShare) {
  Evidence e = clean();
  add_meaning(e);
  e.meaning.rows[0].share = 0.2;
  e.meaning.rows[2].share = 0.8;
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful),
                    trajectory("S - R", PairedOutcome::kHarmful)};
  const Judgement j = classify(e);
  EXPECT_EQ(j.findings.at(0).cause, "batch_norm");
  EXPECT_EQ(j.findings.at(1).cause, "reduction");
}

// A proven cause leads without seeds, too; whether it matters is then open.
TEST(Classify, AProvenCauseLeadsAQuickLook) {
  for (const bool quick : {false, true}) {
    Evidence e = clean();
    e.quick = quick;
    add_meaning(e);
    e.trajectories = {trajectory("T - R", PairedOutcome::kUndecided),
                      trajectory("S - R", PairedOutcome::kUndecided)};
    for (TrajectoryRow& row : e.trajectories) row.differences.resize(1);
    const Judgement j = classify(e);
    expect_verdict(j, VerdictClass::kSharding, 10);
    EXPECT_TRUE(contains(j.headline, "reduction 90%")) << j.headline;
    EXPECT_TRUE(contains(j.headline, "was not tested")) << j.headline;
    EXPECT_EQ(j.findings.at(0).cause, "reduction");
    // What the causes leave unexplained is said as well.
    e.meaning.residual = 0.3;
    expect_verdict(classify(e), VerdictClass::kSharding, 10);
    EXPECT_TRUE(contains(classify(e).headline, "reduction 90%")) << classify(e).headline;
    EXPECT_FALSE(contains(classify(e).headline, "found nothing wrong")) << classify(e).headline;
  }
}

// A change of meaning is sharding's, whether the known causes explain all of it or not.
TEST(Classify, WhatNoCauseExplainsIsSaid) {
  Evidence e = clean();
  add_meaning(e);
  e.meaning.residual = 0.3;
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful),
                    trajectory("S - R", PairedOutcome::kHarmful)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_TRUE(contains(j.headline, "which does not explain all of it")) << j.headline;
}

// What sharding means is one answer, whether it matters another.
TEST(Classify, ShardingWithoutAnEffectIsSharding) {
  Evidence e = clean();
  add_meaning(e);
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected),
                    trajectory("S - R", PairedOutcome::kNoneDetected),
                    trajectory("T - S", PairedOutcome::kNoneDetected, 0.002)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_TRUE(contains(j.headline, "reduction 90%")) << j.headline;
  EXPECT_TRUE(contains(j.headline, "held-out loss moves by +0.0100 [+0.00900, +0.0110]"))
      << j.headline;
  EXPECT_EQ(j.effect, Effect::kNoneDetected);
  EXPECT_EQ(j.effect_metric, "held-out loss");
  EXPECT_TRUE(contains(j.next_steps.back(), "diagnose.margin")) << j.next_steps.back();
  ASSERT_EQ(j.findings.size(), 2u);
  for (const Finding& f : j.findings) {
    EXPECT_EQ(f.verdict, VerdictClass::kSharding);
    EXPECT_TRUE(contains(f.number_text, "in 3 paired seeds: none detected")) << f.number_text;
  }
}

TEST(Classify, ShardingThatTheSeedsDoNotDecide) {
  Evidence e = clean();
  add_meaning(e);
  e.trajectories = {trajectory("T - R", PairedOutcome::kUndecided),
                    trajectory("S - R", PairedOutcome::kUndecided)};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_TRUE(contains(j.headline, "not decided")) << j.headline;
  EXPECT_EQ(j.effect, Effect::kUndecided);
  EXPECT_TRUE(contains(j.next_steps.back(), "seeds would decide")) << j.next_steps.back();
  // What the engine adds is not acquitted by it.
  e.trajectories[0] = trajectory("T - R", PairedOutcome::kHarmful);
  j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
}

// An imported step has no held-out samples and no seeds, so the ops alone decide.
TEST(Classify, WithoutHeldOutSamplesOpsDecide) {
  Evidence e = clean();
  e.held_out = false;
  e.trajectories.clear();
  for (const bool quick : {false, true}) {
    e.quick = quick;
    const Judgement j = classify(e);
    expect_verdict(j, VerdictClass::kNoise, 0);
    ASSERT_FALSE(j.notes.empty());
    EXPECT_TRUE(contains(j.notes.front(), "was not judged")) << j.notes.front();
  }
  // Equal bits say no more of what was not asked.
  e.identical = true;
  e.user_sharding.emplace().cores = 4;
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kIdentical, 0);
  EXPECT_TRUE(contains(j.notes.at(1), "What the sharding means was not judged")) << j.notes[1];
}

// On this data the sharded program is the whole batch's, on other data it is not: a line says so.
TEST(Classify, AnotherFunctionOnOtherDataIsSaid) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  e.proofs.emplace_back().diverges_at = "clip/scale";
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  ASSERT_EQ(j.remarks.size(), 1u);
  EXPECT_TRUE(contains(j.remarks[0], "another function")) << j.remarks[0];
  EXPECT_TRUE(contains(j.remarks[0], "clip/scale")) << j.remarks[0];
  e.proofs[0].gradient = e.proofs[0].update = e.proofs[0].statistics = true;
  EXPECT_TRUE(classify(e).remarks.empty());
}

// An op of which no bound says anything was not judged.
TEST(Classify, AnOpWithoutABoundIsNotNoise) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  e.unbounded = {"loss/exp"};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  EXPECT_TRUE(contains(j.headline, "loss/exp")) << j.headline;
}

TEST(Classify, PrecisionNoise) {
  Evidence e = clean();
  e.default_drift = 0.004;
  e.highest_drift = 1e-7;
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  EXPECT_TRUE(contains(j.headline, "precision")) << j.headline;
  EXPECT_TRUE(contains(j.headline, "Held-out loss moves by +0.0100")) << j.headline;
  EXPECT_TRUE(contains(j.confidence, "95%")) << j.confidence;
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "precision");
  EXPECT_EQ(j.findings[0].number_text,
            "held-out loss is moved by +0.0100 in all (the engine against the reference), interval "
            "[+0.00900, +0.0110], in 3 paired seeds: none detected");
  EXPECT_EQ(j.findings[0].bound_source,
            "no margin is declared: an effect is one whose interval leaves 0");
  EXPECT_EQ(j.findings[0].evidence.at(0),
            "one step's gradient differs from the float32 reference by 0.400% at precision "
            "default, by 1.00e-07 of its size at "
            "highest: the rounding of operands is the reason");
  // Where the two drifts agree, precision removes nothing.
  e.subject.precision = DotPrecision::kBf16x6;
  e.default_drift = e.highest_drift;
  j = classify(e);
  EXPECT_TRUE(j.findings[0].evidence.empty());
  EXPECT_TRUE(contains(j.findings[0].sentence, "the declared precision of products (highest)"))
      << j.findings[0].sentence;
}

TEST(Classify, RoundingNoise) {
  Evidence e = clean();
  e.subject.precision = DotPrecision::kF32;
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  EXPECT_EQ(j.findings.at(0).cause, "rounding");
  EXPECT_TRUE(contains(j.headline, "rounding")) << j.headline;
  // T equals the sharded reference: whatever precision is declared, it is not the cause.
  e.subject.precision = DotPrecision::kBf16;
  e.t_equals_s = true;
  EXPECT_EQ(classify(e).findings.at(0).cause, "rounding");
}

TEST(Classify, WithoutTrajectoriesNothingIsNoise) {
  expect_verdict(classify(clean()), VerdictClass::kInconclusive, 125);
}

// A drift below 2^-26 is not a change of meaning, so no causes are reported.
TEST(Classify, MeaningBelowTheThresholdIsIgnored) {
  Evidence e = clean();
  add_meaning(e);
  e.meaning.drift = kMeaningThreshold / 2;
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected),
                    trajectory("S - R", PairedOutcome::kNoneDetected)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "precision");
}

// If the emulator at precision f32 does not equal the reference, it can neither accuse nor acquit.
TEST(Classify, EmulatorThatFailsItsControl) {
  Evidence e = clean();
  e.emulator_fails = true;
  e.violations = {violation("dense2/kernel.grad", 1, 0, 8)};
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  EXPECT_TRUE(contains(j.headline, "emulator fails its own control")) << j.headline;
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "emulator");
  EXPECT_EQ(j.findings[0].verdict, VerdictClass::kInconclusive);
}

// An engine of another process that failed is neither accused nor acquitted; its last output is
// quoted.
TEST(Classify, EngineThatFailed) {
  Evidence e = clean();
  e.engine_failure = Error{
      "step 3: ended with exit status 9 without an answer; the last it said on its standard "
      "error:\nout of memory\nbye",
      "exec:engine", "a fix"};
  e.engine_failure_run = "T";
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "engine_failed");
  EXPECT_TRUE(
      contains(j.findings[0].sentence,
               "In the run \"subject, sharded\", exec:engine: step 3: ended with exit status 9"));
  EXPECT_EQ(j.findings[0].evidence, (std::vector<std::string>{"out of memory", "bye"}));
  EXPECT_EQ(j.next_steps.back(), "a fix");
}

// T differs from T': a note if every op is inside its bound and the engine promised nothing, a
// broken promise otherwise, and a bug that does not repeat if an op is outside.
TEST(Classify, SubjectThatIsNotDeterministic) {
  Evidence e = clean();
  e.subject_diverges_at = 1;
  e.subject.deterministic = true;
  expect_verdict(classify(e), VerdictClass::kNondeterministic, 30);
  e.subject.deterministic = false;
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kNoise, 0);
  ASSERT_FALSE(j.notes.empty());
  EXPECT_TRUE(contains(j.notes[0], "the same run twice diverges at step 1")) << j.notes[0];
  EXPECT_TRUE(contains(j.notes[0], "inside its bound in both")) << j.notes[0];
  e.violations = {violation("dense2/kernel.grad", 1, 0, 8)};
  e.violations[0].persistence = Violation::Persistence::kTransient;
  e.violations[0].reruns = 2;
  j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  EXPECT_TRUE(contains(j.headline, "transient")) << j.headline;
  EXPECT_FALSE(contains(j.notes.at(0), "inside its bound")) << j.notes[0];
}

// Only the subject ends in NaN, and no op is outside its bound: report where the first non-finite
// value arises.
TEST(Classify, DivergingSubject) {
  Evidence e = clean();
  e.subject_non_finite = FirstNonFinite{9, 5, "dense2/dot_general", "forward", "Inf"};
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful, std::nan(""))};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kInconclusive, 125);
  ASSERT_FALSE(j.notes.empty());
  EXPECT_TRUE(contains(j.notes[0], "Inf at step 9, first in dense2/dot_general")) << j.notes[0];
  // Without seeds or held-out samples it is no better.
  e.trajectories.clear();
  for (const bool held_out : {false, true}) {
    e.held_out = held_out;
    e.quick = held_out;
    j = classify(e);
    expect_verdict(j, VerdictClass::kInconclusive, 125);
    EXPECT_TRUE(contains(j.headline, "dense2/dot_general first produces Inf at step 9"))
        << j.headline;
  }
}

// The algebra of the update is a source of noise with a name of its own, alone or beside another
// source.
TEST(Classify, UpdateAlgebraIsNamed) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  e.algebra_drift = 3e-8;
  Judgement j = classify(e);
  EXPECT_EQ(j.verdict, VerdictClass::kNoise);
  ASSERT_EQ(j.findings.size(), 2u);
  EXPECT_EQ(j.findings[0].cause, "precision");
  EXPECT_EQ(j.findings[1].cause, "update_algebra");
  EXPECT_TRUE(contains(j.headline, "from the declared precision and the update's algebra"))
      << j.headline;
  EXPECT_TRUE(contains(j.findings[1].number_text, "3.00e-08")) << j.findings[1].number_text;
  e.cores = 1;
  e.t_equals_s = true;
  j = classify(e);
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "update_algebra");
  EXPECT_TRUE(contains(j.headline, "What differs is noise, from the update's algebra:"))
      << j.headline;
  e.algebra_drift = -1;
  j = classify(e);
  ASSERT_EQ(j.findings.size(), 1u);
  EXPECT_EQ(j.findings[0].cause, "rounding");
}

// The subject runs a program with another cause. Whether that matters is decided by T, and every
// cause of the class is named.
TEST(Classify, ScriptOfAnotherProgram) {
  Evidence e = clean();
  e.other_program = true;
  e.match = matched(Identification::Outcome::kExplained);
  e.known_causes = {
      {"unscaled", "nobody divides by 8", "divide by the cores", "", "an engine that scales"},
      {"rate_times_cores", "the rate is 8 times", "divide the rate", "", ""}};
  e.trajectories = {trajectory("T - R", PairedOutcome::kHarmful, 0.4)};
  Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_TRUE(contains(j.headline, "never scaled by 1/cores, or a learning rate times the cores"))
      << j.headline;
  ASSERT_EQ(j.findings.size(), 2u);
  EXPECT_EQ(j.findings[0].cause, "unscaled");
  EXPECT_EQ(j.findings[1].cause, "rate_times_cores");
  EXPECT_EQ(j.findings[0].sentence,
            "The training script differs from the scenario: nobody divides by 8.");
  EXPECT_TRUE(contains(j.findings[0].number_text, "held-out loss is moved by +0.400 in all"))
      << j.findings[0].number_text;
  EXPECT_TRUE(contains(j.confidence, "identified tensor by tensor")) << j.confidence;
  e.match->read = true;
  EXPECT_TRUE(contains(classify(e).confidence, "identified from what the ops read, bit by bit"))
      << classify(e).confidence;
  e.match->read = false;
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_EQ(j.effect, Effect::kNoneDetected);
  EXPECT_TRUE(contains(j.headline, "never scaled")) << j.headline;
  e.trajectories = {trajectory("T - R", PairedOutcome::kUndecided)};
  j = classify(e);
  expect_verdict(j, VerdictClass::kSharding, 10);
  EXPECT_EQ(j.findings.size(), 2u);
  // If there is an engine bug as well, it comes first.
  e.violations = {violation("dense2/kernel.grad", 1, 0, 8)};
  e.violations_run = "T";
  j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  ASSERT_EQ(j.findings.size(), 3u);
  EXPECT_EQ(j.findings[0].op, "dense2/kernel.grad");
  EXPECT_TRUE(contains(j.headline, "also runs another program")) << j.headline;
}

// A finding of bias is statistical, and its score is given beside that of conforming engines.
TEST(Classify, BiasBelowTheBound) {
  Evidence e = clean();
  Violation v = violation("dense1/dot_general", 0, 1, 1);
  v.what = Violation::What::kStatistic;
  BiasFinding b;
  b.score = {"toward zero", -0.93, -0.18, 0.34};
  b.steps = 3;
  b.observations = 6;
  b.members = 12;
  v.bias = b;
  e.violations = {v};
  e.violations_run = "T";
  const Judgement j = classify(e);
  expect_verdict(j, VerdictClass::kEngineBug, 20);
  EXPECT_TRUE(contains(j.headline, "with a bias")) << j.headline;
  EXPECT_TRUE(contains(j.confidence, "statistical")) << j.confidence;
  EXPECT_DOUBLE_EQ(j.findings.at(0).number, 0.93);
  EXPECT_DOUBLE_EQ(j.findings.at(0).bound, 0.34);
  EXPECT_EQ(j.findings.at(0).number_text, "score 0.930; conforming engines stay within 0.340");
  EXPECT_TRUE(contains(j.findings.at(0).sentence, "seen 6 times, on 3 steps, from step 0 on"))
      << j.findings[0].sentence;
}

}  // namespace
}  // namespace twinrun
