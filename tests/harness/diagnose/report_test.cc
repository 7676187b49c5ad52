// Tests what a report contains beyond the judgement: injected faults, the ops around a finding, a
// reference that did not train.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/diagnose/findings.h"
#include "harness/diagnose/pipeline.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

Report diagnosed(const char* layers, const Overrides& overrides, const std::string& fault = "",
                 bool quick = true) {
  const Folder folder;
  DiagnoseOptions options;
  options.directory = folder / "out";
  options.quick = quick;
  options.command = "twinrun diagnose tiny";
  if (!fault.empty()) options.faults = {tiny::must(parse_fault(fault))};
  return tiny::must(diagnose(tiny::scenario(layers, overrides), options, nullptr, nullptr)).report;
}

Report cured(const char* layers, const Overrides& overrides) {
  const Folder folder;
  DiagnoseOptions options;
  options.directory = folder / "out";
  options.cure = true;
  options.command = "twinrun diagnose tiny";
  return tiny::must(diagnose(tiny::scenario(layers, overrides), options, nullptr, nullptr)).report;
}

bool says(const std::vector<std::string>& lines, const std::string& part) {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

TEST(Report, AnInjectedFaultIsSaidAndNothingIsToBeFiled) {
  const Report r =
      diagnosed(tiny::kDense, {{"train.steps", "8"}}, "scale@dense2/kernel.grad,from=3");
  EXPECT_EQ(r.verdict, VerdictClass::kEngineBug);
  EXPECT_EQ(
      r.injected,
      "Injected on purpose: scale@dense2/kernel.grad,from=3; it changed bits from step 3 on.");
  EXPECT_TRUE(says(r.next_steps, "nothing to file"));
  EXPECT_FALSE(says(r.next_steps, "file it"));
  EXPECT_NE(r.program_excerpt.find("dense2/kernel.grad"), std::string::npos) << r.program_excerpt;
}

// The data of the page's figures: weights that diverge where the fault begins, whose bits differ,
// the picture of the wrong tensor.
TEST(Report, WeightsAndBitsPartWhereTheFaultBegins) {
  const Report r =
      diagnosed(tiny::kDense, {{"train.steps", "8"}, {"tpu.cores", "1"}, {"tpu.precision", "f32"}},
                "scale@dense2/kernel.grad,from=3");
  ASSERT_EQ(r.weight_drift.steps, (std::vector<int64_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  ASSERT_EQ(r.weight_drift.rows.size(), 4U);
  for (const WeightDrift::Row& row : r.weight_drift.rows) {
    for (size_t step = 0; step < 8; ++step) {
      const bool moved = row.variable == "dense2/kernel" ? step >= 3 : step >= 4;
      EXPECT_EQ(row.distance[step] > 0, moved) << row.variable << " after step " << step;
      EXPECT_LT(row.distance[step], 10);
    }
  }
  for (const StateDivergence& p : r.state_divergences) {
    EXPECT_EQ(p.steps, 8) << p.pair;
    EXPECT_EQ(p.first_step, p.pair == "T - R" ? std::optional<int64_t>(3) : std::nullopt) << p.pair;
  }
  EXPECT_EQ(r.state_divergences.size(), 2U);
  EXPECT_TRUE(says(r.ruled_out, "chance: the subject gave the same bits"));
  EXPECT_FALSE(says(r.ruled_out, "a wrong op of the engine"));
  ASSERT_TRUE(r.findings.front().picture);
  EXPECT_EQ(r.findings.front().picture->cells.size(), 12U);
  EXPECT_TRUE(r.loss_band.low.empty());
}

TEST(Report, EveryCoreHasADigestAndSeedsMakeABand) {
  const Report r =
      diagnosed(tiny::kDense, {{"train.steps", "6"}, {"diagnose.seeds", "3"}}, "", false);
  for (const RunSummary& run : r.runs) {
    const bool sharded = run.name == "S" || run.name == "T";
    ASSERT_EQ(run.core_digests.size(), sharded ? 8U : 1U) << run.name;
    for (const std::string& digest : run.core_digests) EXPECT_EQ(digest, run.core_digests.front());
  }
  EXPECT_EQ(r.runs[0].core_digests, r.runs[1].core_digests);
  EXPECT_TRUE(says(r.ruled_out, "a wrong op of the engine: none of"));
  EXPECT_TRUE(says(r.ruled_out, "sharding: the sharded program is the same function"));
  ASSERT_EQ(r.proofs.size(), 1U);
  EXPECT_TRUE(r.proofs[0].gradient && r.proofs[0].update && r.proofs[0].statistics);
  EXPECT_EQ(r.loss_band.source, "least and largest of 3 seeds of the reference");
  ASSERT_EQ(r.loss_band.low.size(), 6U);
  for (size_t step = 0; step < 6; ++step) {
    EXPECT_LE(r.loss_band.low[step], r.runs[0].losses[step]);
    EXPECT_GE(r.loss_band.high[step], r.runs[0].losses[step]);
    EXPECT_LT(r.loss_band.low[step], r.loss_band.high[step]);
  }
}

TEST(Report, AFaultThatChangedNoBitIsSaidToo) {
  const Report r =
      diagnosed(tiny::kDense, {{"train.steps", "4"}}, "scale@dense2/kernel.grad,step=77");
  EXPECT_NE(r.verdict, VerdictClass::kEngineBug);
  EXPECT_NE(r.injected.find("; it changed no bit of any run."), std::string::npos) << r.injected;
}

// If a subject's bits differ from run to run, a verdict that rests on its ops is no less certain.
TEST(Report, ASubjectThatDoesNotRepeatItselfIsNoDoubt) {
  const Report r = diagnosed(tiny::kDense, {{"train.steps", "8"}},
                             "ulp_bias@dense2/bias.grad,magnitude=4,rate=0.4");
  EXPECT_EQ(r.verdict, VerdictClass::kEngineBug);
  const auto failed = std::ranges::find(r.controls, false, &Control::passed);
  ASSERT_NE(failed, r.controls.end());
  EXPECT_TRUE(failed->name.starts_with("the subject again")) << failed->name;
  EXPECT_TRUE(failed->failure.ends_with(
      "The verdict does not depend on this: each op was judged on the inputs that it read."))
      << failed->failure;
}

// Products with weights that are zero do not show how operands are rounded.
TEST(Report, OperandsThatAreZeroAreNoMeasurement) {
  const std::string zeros = std::string(tiny::kDense) + "init = \"zeros\"\n";
  const Report r = diagnosed(zeros.c_str(), {{"train.steps", "4"}, {"optimizer.lr", "1e-30"}});
  for (const EngineProbe& p : r.probes) {
    EXPECT_GT(p.dot_residual, 0x1p-12) << p.dot_residual_text;
    EXPECT_NE(p.dot_residual_text.find("one bf16 pass predicts about 2^-9"), std::string::npos);
    for (const ProbeRow& row : p.rows) EXPECT_NE(row.operand_residual, 0) << row.op;
  }
}

TEST(Report, WithoutAFaultNothingIsInjected) {
  const Report r = diagnosed(tiny::kDense, {{"train.steps", "4"}});
  EXPECT_EQ(r.injected, "");
  EXPECT_EQ(r.program_excerpt, "") << "no finding names an op";
  ASSERT_EQ(r.findings.size(), 1u);
  const std::vector<std::string>& evidence = r.findings[0].evidence;
  EXPECT_TRUE(says(evidence, "is outside its rounding bound; the largest error of a sum or dot"));
  // A single rounding always reaches its bound, so that is not reported.
  EXPECT_FALSE(says(evidence, "1.00 of what is allowed")) << evidence[0];
}

// Six steps with a learning rate of nearly zero.
TEST(Report, AReferenceThatHasNotLearntDecidesNoEffect) {
  const Overrides idle = {
      {"train.steps", "6"}, {"optimizer.lr", "1e-9"}, {"diagnose.margin", "0.5"}};
  const Report r = diagnosed(tiny::kDense, idle, "", false);
  EXPECT_EQ(r.verdict, VerdictClass::kNoise);
  EXPECT_EQ(r.effect, Effect::kUndecided);
  EXPECT_TRUE(r.effect_text.starts_with("the reference has not learnt")) << r.effect_text;
  EXPECT_TRUE(says(r.next_steps, "--set train.steps="));
}

TEST(Report, ALayerInWhichACauseActsIsShown) {
  const Report r =
      diagnosed(tiny::kNormalized, {{"train.steps", "6"}, {"diagnose.margin", "5"}}, "", false);
  EXPECT_EQ(r.verdict, VerdictClass::kSharding) << r.headline;
  EXPECT_EQ(r.effect, Effect::kWithinMargin) << r.effect_text;
  EXPECT_NE(r.program_excerpt.find("batch_norm1/"), std::string::npos) << r.program_excerpt;
}

TEST(Report, ADivergingReferenceTellsItsLosses) {
  const Report r = diagnosed(tiny::kDense, {{"train.steps", "60"}, {"optimizer.lr", "1e18"}});
  ASSERT_EQ(r.findings.size(), 1u) << r.headline;
  EXPECT_EQ(r.findings[0].cause, "reference_diverges");
  EXPECT_TRUE(r.findings[0].number_text.starts_with("loss ")) << r.findings[0].number_text;
  EXPECT_FALSE(r.findings[0].evidence.empty());
  EXPECT_FALSE(r.subject.ends_with(" ")) << r.subject;
}

const ChecklistRow& point(const Report& r, const std::string& name) {
  const auto found = std::ranges::find_if(
      r.checklist, [&](const ChecklistRow& row) { return row.point.starts_with(name); });
  if (found == r.checklist.end()) throw std::runtime_error("no point " + name);
  return *found;
}

// What is asked for before filing is ticked by what ran, and what is open has its command.
TEST(Report, TheChecklistTicksWhatRan) {
  const Report full = diagnosed(tiny::kDense, {{"train.steps", "6"}}, "", false);
  for (const char* done : {"one core", "seeded", "the same initial", "beyond chance",
                           "loss reduction", "a job", "versions"}) {
    EXPECT_TRUE(point(full, done).done) << done << ": " << point(full, done).what;
    EXPECT_EQ(point(full, done).command, "") << done;
  }
  EXPECT_FALSE(point(full, "the finest precision").done);
  EXPECT_EQ(point(full, "the finest precision").command,
            "twinrun diagnose tiny --set tpu.precision=highest");
  EXPECT_FALSE(point(full, "the smallest case").done);
  EXPECT_TRUE(point(full, "the smallest case").command.starts_with("twinrun bundle "));
  const std::string page = to_markdown(full);
  EXPECT_NE(page.find("- [x] one core: the engine on one core, "), std::string::npos) << page;
  EXPECT_NE(page.find("- [ ] the finest precision of products: "), std::string::npos) << page;
  const Report quick =
      diagnosed(tiny::kDense, {{"train.steps", "6"}, {"tpu.precision", "f32"}}, "", true);
  EXPECT_TRUE(point(quick, "the finest precision").done);
  EXPECT_FALSE(point(quick, "beyond chance").done);
  EXPECT_FALSE(point(quick, "beyond chance").command.empty());
}

TEST(Report, TheCureIsRunAndShown) {
  const Report r = cured(tiny::kDense, {{"train.steps", "8"}, {"tpu.reduction", "sum"}});
  EXPECT_EQ(r.verdict, VerdictClass::kSharding) << r.headline;
  ASSERT_EQ(r.cures.size(), 1u);
  const CureRow& cure = r.cures[0];
  EXPECT_EQ(cure.cure, "tpu.reduction = mean");
  EXPECT_EQ(cure.command, "twinrun diagnose tiny --set tpu.reduction=mean");
  EXPECT_EQ(cure.outcome, CureOutcome::kWithinNoise);
  EXPECT_LT(std::abs(cure.loss - cure.loss_reference),
            std::abs(cure.loss_before - cure.loss_reference));
  const auto run = std::ranges::find(r.runs, "U", &RunSummary::name);
  ASSERT_NE(run, r.runs.end()) << "its curve is drawn beside the others";
  EXPECT_EQ(run->losses.size(), 8u);
  for (const std::string& text : {to_terminal(r, {}), to_markdown(r), to_html(r)})
    EXPECT_NE(text.find("tpu.reduction = mean"), std::string::npos) << text;
}

// Where cores normalise over few samples, a larger batch is another cure. It is compared with a
// reference of that batch.
TEST(Report, ALargerBatchIsACureOfSmallBatchNorm) {
  const Report r = cured(tiny::kNormalized, {{"train.steps", "6"}, {"data.train", "512"}});
  ASSERT_EQ(r.cures.size(), 2u) << r.headline;
  EXPECT_EQ(r.cures[0].cure, "tpu.batchnorm = synced");
  EXPECT_TRUE(r.cures[1].cure.starts_with("train.batch = ")) << r.cures[1].cure;
  EXPECT_EQ(r.cures[1].reference, "RL");
  EXPECT_NE(std::ranges::find(r.runs, "RL", &RunSummary::name), r.runs.end());
}

TEST(Report, WhereNothingIsToBeCuredItSaysSo) {
  const Report r = cured(tiny::kDense, {{"train.steps", "4"}});
  EXPECT_TRUE(r.cures.empty());
  EXPECT_TRUE(says(r.notes, "No cure was run"));
}

// Two diagnoses that were acquitted when the margin was computed from three seeds, over several
// base seeds (docs/method/diagnosis.md).
TEST(ReportSlow, WhatADrawnMarginAcquittedIsSharding) {
  const auto verdict = [](const char* scenario, Overrides overrides, int seed) {
    const Folder folder;
    overrides.emplace_back("seed", std::to_string(seed));
    DiagnoseOptions options;
    options.directory = folder / "out";
    options.threads = 2;
    return tiny::must(
               diagnose(tiny::must(load_scenario(scenario, overrides)), options, nullptr, nullptr))
        .report;
  };
  for (int seed = 1; seed <= 8; ++seed) {
    const Report sum =
        verdict("digits_mlp",
                {{"tpu.reduction", "sum"}, {"train.steps", "10"}, {"optimizer.lr", "0.001"}}, seed);
    EXPECT_EQ(sum.verdict, VerdictClass::kSharding) << seed << ": " << sum.headline;
    EXPECT_TRUE(sum.effect_text.starts_with("the reference has not learnt")) << sum.effect_text;
    const Report groups = verdict("mlp_bn",
                                  {{"diagnose.probe", "1000"},
                                   {"tpu.batchnorm", "synced"},
                                   {"tpu.batchnorm_group", "3"},
                                   {"train.batch", "48"},
                                   {"tpu.cores", "6"},
                                   {"train.steps", "100"}},
                                  seed);
    EXPECT_EQ(groups.verdict, VerdictClass::kSharding) << seed << ": " << groups.headline;
  }
}

}  // namespace
}  // namespace twinrun
