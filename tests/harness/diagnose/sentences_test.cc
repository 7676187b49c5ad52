// Tests the sentences of a verdict: numbers beside what is allowed, their source, and what to run
// next, with values.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/diagnose/findings.h"
#include "tests/harness/evidence.h"

namespace twinrun {
namespace {

using namespace by_hand;

// A bound of 0 is explained, and the ratio to it, which is infinite, is not printed.
TEST(Sentences, ErrorsWhereNoRoundingIsAllowed) {
  Violation v = violation("dense1/kernel.momentum.update", 4, 0, 8);
  v.kind = "add";
  v.verdict.worst = INFINITY;
  v.verdict.subject = 0.25;
  v.verdict.value = 0.5;
  v.verdict.radius = 0;
  const auto finding = [&] {
    Evidence e = clean();
    e.violations = {v};
    return classify(e).findings.at(0);
  };
  EXPECT_EQ(finding().number_text, "error 0.250; allowed 0");
  EXPECT_TRUE(contains(finding().bound_source, "the exact result is a float32 number"))
      << finding().bound_source;
  EXPECT_FALSE(contains(finding().sentence, "inf")) << finding().sentence;
  v.verdict.value = 1 + 0x1p-24;  // midway between two float32 numbers
  EXPECT_TRUE(contains(finding().bound_source, "midway between two float32 numbers"))
      << finding().bound_source;
  for (const char* kind : {"broadcast_in_dim", "maximum", "constant", "rng_uniform", "convert"}) {
    v.kind = kind;
    EXPECT_TRUE(contains(finding().bound_source, "only moves or selects values")) << kind;
  }
  v.kind = "divide";
  v.verdict.subject = NAN;
  v.verdict.value = 0.00012;
  v.verdict.radius = 7e-12;
  EXPECT_EQ(finding().number_text, "NaN where 0.000119999997 was expected");
  EXPECT_TRUE(contains(finding().bound_source, "running error analysis")) << finding().bound_source;
}

// The first step at which a small error is detected is not called its onset: it may have been there
// before.
TEST(Sentences, SmallErrorsHaveNoCertainOnset) {
  Evidence e = clean();
  e.violations = {violation("dense2/kernel.grad", 7, 3, 1)};
  EXPECT_FALSE(contains(classify(e).headline, "detectable")) << classify(e).headline;
  e.violations[0].verdict.worst = 1.6;
  EXPECT_TRUE(contains(classify(e).headline, "first detectable at step 7, on core 3"))
      << classify(e).headline;
  EXPECT_TRUE(contains(classify(e).headline, "may be earlier and on other cores"))
      << classify(e).headline;
  e.violations[0].step = 0;
  EXPECT_TRUE(contains(classify(e).headline, "may be on other cores.")) << classify(e).headline;
  e.violations[0].replicas = 8;
  EXPECT_FALSE(contains(classify(e).headline, "may be")) << classify(e).headline;
}

TEST(Sentences, RerunsAreCountedAndComeFirst) {
  Evidence e = clean();
  Violation v = violation("dense2/kernel.grad", 1, 0, 8);
  v.layer = "dense2";
  v.reruns = 2;
  v.wrong_again = v.same_bits_again = 1;
  v.persistence = Violation::Persistence::kIntermittent;
  e.violations = {v};
  EXPECT_EQ(classify(e).findings.at(0).evidence.at(0),
            "run again from the same state: wrong in 1 of 2 reruns, with the same bits in 1 "
            "(intermittent)");
}

// The text says whether the result is better or worse, and which effect the seeds do not resolve.
TEST(Sentences, ShardingSaysWhichWayAndWhatIsNotResolved) {
  Evidence e = clean();
  add_meaning(e);
  e.trajectories = {trajectory("T - R", PairedOutcome::kBeneficial, -0.76),
                    trajectory("S - R", PairedOutcome::kBeneficial, -0.758),
                    trajectory("T - S", PairedOutcome::kUndecided, 0.01)};
  e.trajectories[2].detectable = 0.13;
  Judgement j = classify(e);
  EXPECT_TRUE(contains(j.headline, "0.758 lower (better)")) << j.headline;
  EXPECT_TRUE(std::ranges::any_of(j.findings[0].evidence, [](const std::string& line) {
    return contains(line, "is better here; the cure makes it behave as the unsharded reference");
  }));
  ASSERT_EQ(j.notes.size(), 1u);
  EXPECT_EQ(j.notes[0],
            "The engine's own effect is not resolved: 3 paired seeds would show a change of "
            "0.130 or more of held-out loss.");
}

// The next steps have values: the number of seeds that would decide, or a margin that would be
// accepted.
TEST(Sentences, WhatDecidesHasValues) {
  Evidence e = clean();
  add_meaning(e);
  const auto rows = [](const std::vector<double>& losses, int seeds, int most, double margin) {
    DiagnoseSpec asked;
    asked.seeds = seeds;
    asked.max_seeds = most;
    asked.margin = margin;
    std::vector<Evaluation> a, b;
    for (size_t i = 0; i < losses.size(); ++i) {
      a.push_back({1, losses[i], 0});
      b.push_back({1, 0.0001 * static_cast<double>(i), 0});
    }
    return SeedTrials(asked, false, 0).compare("S - R", "", a, b, b);
  };
  e.trajectories = rows({0.001, -0.0023, 0.0012}, 3, 3, 0);
  ASSERT_EQ(e.trajectories[0].outcome, PairedOutcome::kUndecided);
  const std::string next = classify(e).next_steps.back();
  EXPECT_TRUE(contains(next, "not even 1000 seeds would decide")) << next;
  EXPECT_TRUE(contains(next, "--set diagnose.margin=")) << next;
  const double margin = std::stod(next.substr(next.rfind('=') + 1));
  EXPECT_EQ(rows({0.001, -0.0023, 0.0012}, 3, 3, margin)[0].outcome, PairedOutcome::kNoneDetected);
  e.trajectories = rows({0.001, 0.0023, 0.0012}, 3, 3, 0);
  ASSERT_EQ(e.trajectories[0].outcome, PairedOutcome::kUndecided);
  EXPECT_TRUE(contains(classify(e).next_steps.back(),
                       fmt::format("--set diagnose.max_seeds={}", e.trajectories[0].would_decide)))
      << classify(e).next_steps.back();
  e.trajectories = rows({0.001}, 1, 20, 0);
  EXPECT_TRUE(contains(classify(e).next_steps.back(), "--set diagnose.seeds=3"))
      << classify(e).next_steps.back();
}

// The next step of a PROGRAM verdict is one line with two alternatives: change the scenario, or
// change the script.
TEST(Sentences, AProgramHasTwoCures) {
  Evidence e = clean();
  FormulaChange change;
  change.values = {{"optimizer.nesterov", "true"}};
  change.setting = "optimizer.nesterov = true";
  change.meaning = "has nesterov = true where the scenario has false";
  change.cure = "give the script the scenario's formula (optimizer.nesterov = false)";
  Identification match;
  match.explanations = {{{{change.setting, true, change}}, 0.5}};
  e.match = match;
  Judgement j;
  program_findings(e, j, VerdictClass::kProgram);
  const std::string both =
      "f the script is right, set optimizer.nesterov = true in the scenario; if the scenario is "
      "right, give the script the scenario's formula (optimizer.nesterov = false)";
  ASSERT_EQ(j.next_steps.size(), 1U);
  EXPECT_EQ(j.next_steps[0], "I" + both + ".");
  EXPECT_EQ(j.findings.at(0).evidence.back(), "cure: i" + both);
}

TEST(Sentences, AnEnsembleSaysWhatItsRankMeans) {
  Evidence e = clean();
  e.trajectories = {trajectory("T - R", PairedOutcome::kNoneDetected)};
  e.ensembles = {{"T", "loss curve", 20, 8, 1.1e-6, 1e-8, 1e-6, 1.0 / 9, EnsembleOutcome::kInside}};
  const std::string line = classify(e).findings.at(0).evidence.at(0);
  EXPECT_TRUE(contains(line, "compared with 8 simulated correct engines")) << line;
  EXPECT_TRUE(contains(line, "larger than the largest of theirs, rank p = 0.11; not flagged"))
      << line;
}

// A finding cites a proof instead of a distance below a threshold, and the distance where there is
// no proof.
TEST(Sentences, AProofIsSaidInThePlaceOfADistance) {
  Evidence e = clean();
  add_meaning(e);
  e.meaning.rows[0].drift_after = 3e-15;
  const auto reported = [&] {
    Judgement j;
    sharding_findings(e, j, VerdictClass::kSharding);
    std::string all;
    for (const std::string& line : j.findings.at(0).evidence) all += line + "\n";
    return all;
  };
  EXPECT_TRUE(contains(reported(), "below 1.49e-08")) << reported();
  e.proofs = {{"sharded", false, false, true, 2, 58, -110.3, "loss/scaled", "loss/value", ""},
              {"without reduction", true, true, true, 2, 58, -110.3, "", "", ""}};
  EXPECT_TRUE(contains(reported(), "is the whole batch's function: equal at 2 random points"));
  EXPECT_TRUE(contains(reported(), "of degree 58 or less is with a probability below 2^-110"));
  EXPECT_TRUE(contains(reported(), "not the whole batch's is loss/scaled, made of loss/value"));
  EXPECT_FALSE(contains(reported(), "1.49e-08")) << reported();
  e.proofs[1].unproven = "rounded: no value";
  EXPECT_TRUE(contains(reported(), "below 1.49e-08")) << reported();
}

}  // namespace
}  // namespace twinrun
