// Tests the ablation of sharding causes on the reference: what is restored, what is introduced, and
// shares that add up.
#include "harness/sharding/ablation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "harness/sharding/catalogue.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

MeaningResult probe(const Experiment& e) {
  const Program whole = e.whole();
  const ProbeState start{
      0, to_checkpoint(whole, initial_states(whole, e.scenario.seed), e.scenario, 0)};
  return tiny::must(probe_meaning(e, {start}, 1));
}

const AblationRow& row(const MeaningResult& m, const std::string& cause,
                       const std::string& direction) {
  const auto it = std::ranges::find_if(
      m.rows, [&](const AblationRow& r) { return r.cause == cause && r.direction == direction; });
  if (it == m.rows.end()) throw std::runtime_error("no row " + cause + ", " + direction);
  return *it;
}

TEST(Ablation, NoCauseNoDrift) {
  const MeaningResult m = probe(tiny::experiment(tiny::kDense));
  EXPECT_TRUE(m.causes.empty());
  EXPECT_TRUE(m.rows.empty());
  EXPECT_LT(m.drift, kMeaningThreshold);
  EXPECT_FALSE(m.differs());
}

// Dropout's masks are keyed by the position in the global batch, so sharding must not change them.
TEST(Ablation, SyncedBatchNormAndDropoutMeanTheSame) {
  const MeaningResult m = probe(tiny::experiment(tiny::kNormalized, {{"tpu.batchnorm", "synced"}}));
  EXPECT_TRUE(m.causes.empty());
  EXPECT_LT(m.drift, kMeaningThreshold);
}

// Every core has all pairs of the batch and sums those of its own samples.
TEST(Ablation, ASumOverGatheredPairsMeansTheSame) {
  for (const char* weights : {"tokens", "none"}) {
    const Experiment e = tiny::must(
        make_experiment(tiny::must(load_scenario("drill_triplet", {{"tpu.cores", "5"},
                                                                   {"loss.reduction", "sum"},
                                                                   {"loss.weights", weights},
                                                                   {"tpu.reduction", "sum"},
                                                                   {"optimizer.l2", "0"}}))));
    const MeaningResult m = probe(e);
    EXPECT_FALSE(m.differs()) << weights << ": " << m.drift;
  }
}

// 1/3 is not a float32 number; the error that this causes is not a change of meaning.
TEST(Ablation, ThreeCoresMeanTheSame) {
  const Experiment e = tiny::must(make_experiment(
      tiny::must(load_scenario("drill_cnn", {{"tpu.cores", "3"}, {"tpu.batchnorm", "synced"}}))));
  const MeaningResult m = probe(e);
  EXPECT_FALSE(m.differs()) << m.drift;
  EXPECT_GT(m.drift, kMeaningThreshold) << "else there is nothing to allow for";
}

TEST(Ablation, OneCoreHasNoCause) {
  const Experiment e =
      tiny::experiment(tiny::kNormalized,
                       {{"tpu.cores", "1"}, {"loss.reduction", "sum"}, {"tpu.reduction", "mean"}});
  EXPECT_TRUE(sharding_causes(e).empty());
}

// A summed loss under a mean all-reduce: the sharded gradient is an eighth, so 7/8 of it is
// missing.
TEST(Ablation, SumUnderMean) {
  const MeaningResult m =
      probe(tiny::experiment(tiny::kDense, {{"loss.reduction", "sum"}, {"tpu.reduction", "mean"}}));
  ASSERT_EQ(m.causes.size(), 1u);
  EXPECT_EQ(m.causes[0].name, "reduction");
  EXPECT_NE(m.causes[0].meaning.find("1/8"), std::string::npos) << m.causes[0].meaning;
  EXPECT_NE(m.causes[0].cure.find("tpu.reduction = \"sum\""), std::string::npos);
  EXPECT_NEAR(m.drift, 7.0 / 8, 1e-9);
  EXPECT_TRUE(m.differs());
  const AblationRow& restored = row(m, "reduction", "restored in S");
  EXPECT_NEAR(restored.drift_before, 7.0 / 8, 1e-9);
  EXPECT_LT(restored.drift_after, kMeaningThreshold);
  EXPECT_NEAR(restored.share, 1, 1e-9);
  EXPECT_TRUE(restored.explains);
  const AblationRow& introduced = row(m, "reduction", "introduced alone");
  EXPECT_LT(introduced.drift_before, kMeaningThreshold);
  EXPECT_NEAR(introduced.drift_after, 7.0 / 8, 1e-9);
}

// A mean loss under a summing all-reduce: eight times the gradient, seven times too much.
TEST(Ablation, MeanUnderSum) {
  const MeaningResult m =
      probe(tiny::experiment(tiny::kDense, {{"loss.reduction", "mean"}, {"tpu.reduction", "sum"}}));
  ASSERT_EQ(m.causes.size(), 1u);
  EXPECT_NEAR(m.drift, 7, 1e-8);
  EXPECT_NEAR(row(m, "reduction", "restored in S").share, 1, 1e-9);
}

const CauseEffect& effect(const MeaningResult& m, const std::string& cause, StepKind kind) {
  const auto it = std::ranges::find_if(
      m.effects, [&](const CauseEffect& e) { return e.cause == cause && e.kind == kind; });
  if (it == m.effects.end()) throw std::runtime_error("no effect of " + cause);
  return *it;
}

// Two causes: over which samples the layer normalises, and whose running statistics are kept.
TEST(Ablation, PerCoreBatchNorm) {
  const MeaningResult m = probe(tiny::experiment(tiny::kNormalized));
  ASSERT_EQ(m.causes.size(), 2u);
  EXPECT_EQ(m.causes[0].name, "batch_norm");
  EXPECT_EQ(m.causes[1].name, "statistics");
  EXPECT_NE(m.causes[0].meaning.find("4 samples"), std::string::npos) << m.causes[0].meaning;
  EXPECT_EQ(m.kind, StepKind::kGradient);
  EXPECT_GT(m.drift, 1e-3);
  EXPECT_TRUE(m.explained());
  EXPECT_NEAR(row(m, "batch_norm", "restored in S").share, 1, 1e-9);
  EXPECT_NEAR(row(m, "statistics", "restored in S").share, 0, 1e-9);
  EXPECT_GT(effect(m, "statistics", StepKind::kStatistics).alone, 1e-2);
  EXPECT_GT(effect(m, "statistics", StepKind::kEvaluation).alone, 1e-6);
  EXPECT_LT(effect(m, "statistics", StepKind::kGradient).alone, kMeaningThreshold);
  EXPECT_LT(effect(m, "batch_norm", StepKind::kStatistics).alone, kMeaningThreshold)
      << "the first layer's inputs are the same: its statistics over all cores are too";
}

// Each core clips its own gradient, an eighth of the batch's, so the threshold does not reach it.
TEST(Ablation, ClippingBeforeTheAllReduce) {
  const Overrides clip = {{"optimizer.clip", "global_norm"},
                          {"optimizer.clip_at", "0.25"},
                          {"tpu.clipping", "before_all_reduce"}};
  const MeaningResult m = probe(tiny::experiment(tiny::kDense, clip));
  ASSERT_EQ(m.causes.size(), 1u);
  EXPECT_EQ(m.causes[0].name, "clipping");
  EXPECT_NE(m.causes[0].meaning.find("1/8"), std::string::npos) << m.causes[0].meaning;
  EXPECT_GT(m.drift, 0.1);
  EXPECT_LT(m.residual, kMeaningThreshold);
  EXPECT_NEAR(row(m, "clipping", "restored in S").share, 1, 1e-9);
  Overrides after = clip;
  after[2].second = "after_all_reduce";
  const MeaningResult none = probe(tiny::experiment(tiny::kDense, after));
  EXPECT_TRUE(none.causes.empty());
  EXPECT_LT(none.drift, kMeaningThreshold);
  EXPECT_TRUE(probe(tiny::experiment(tiny::kDense, {clip[2]})).causes.empty())
      << "nothing is clipped";
}

// A sum of gradients counts every core's L2 term; a mean counts it once.
TEST(Ablation, L2UnderSum) {
  const Overrides sums = {
      {"optimizer.l2", "2.0"}, {"loss.reduction", "sum"}, {"tpu.reduction", "sum"}};
  const MeaningResult m = probe(tiny::experiment(tiny::kDense, sums));
  ASSERT_EQ(m.causes.size(), 1u);
  EXPECT_EQ(m.causes[0].name, "l2");
  EXPECT_GT(m.drift, 1e-3);
  EXPECT_LT(m.residual, kMeaningThreshold);
  const MeaningResult mean = probe(tiny::experiment(tiny::kDense, {{"optimizer.l2", "2.0"}}));
  EXPECT_TRUE(mean.causes.empty());
  EXPECT_LT(mean.drift, kMeaningThreshold);
  // Under the wrong reduction both causes are present, and nothing is left without them.
  const MeaningResult both = probe(tiny::experiment(tiny::kDense, {sums[0], sums[1]}));
  EXPECT_EQ(both.causes.size(), 2u);
  EXPECT_LT(both.residual, kMeaningThreshold);
}

// Two causes at once: Shapley values by their definition for two players, and nothing left over.
TEST(Ablation, SharesOfTwoCausesAddUp) {
  const MeaningResult m = probe(
      tiny::experiment(tiny::kNormalized, {{"loss.reduction", "sum"}, {"tpu.reduction", "mean"}}));
  ASSERT_EQ(m.causes.size(), 3u);  // the third, running statistics, does not affect the gradient
  EXPECT_NEAR(row(m, "statistics", "restored in S").share, 0, 1e-9);
  const AblationRow& reduction = row(m, "reduction", "restored in S");
  const AblationRow& norm = row(m, "batch_norm", "restored in S");
  const auto square = [](double x) { return x * x; };
  const double both = square(m.drift), neither = square(m.residual);
  const double without_reduction = square(reduction.drift_after);
  const double without_norm = square(norm.drift_after);
  EXPECT_GT(without_reduction, square(kMeaningThreshold));  // batch norm's own effect is left
  EXPECT_GT(without_norm, square(kMeaningThreshold));
  EXPECT_NEAR(reduction.share * both, ((both - without_reduction) + (without_norm - neither)) / 2,
              1e-9 * both);
  EXPECT_NEAR(norm.share * both, ((both - without_norm) + (without_reduction - neither)) / 2,
              1e-9 * both);
  EXPECT_NEAR(reduction.share + norm.share + neither / both, 1, 1e-9);
  EXPECT_LT(m.residual, kMeaningThreshold);
  // What remains when one cause is restored is the other one alone.
  EXPECT_DOUBLE_EQ(row(m, "reduction", "introduced alone").drift_after, norm.drift_after);
  EXPECT_DOUBLE_EQ(row(m, "batch_norm", "introduced alone").drift_after, reduction.drift_after);
  // The interaction index of two players is what they do together beyond what each does alone.
  const auto pair = std::ranges::find_if(m.interactions, [](const Interaction& i) {
    return i.a == "reduction" && i.b == "batch_norm" && i.kind == StepKind::kGradient;
  });
  ASSERT_NE(pair, m.interactions.end());
  EXPECT_NEAR(pair->index * both, both - without_reduction - without_norm + neither, 1e-9 * both);
}

TEST(Ablation, DriftIsTheRootMeanSquareOverStates) {
  const Experiment e = tiny::experiment(tiny::kNormalized);
  const Program whole = e.whole();
  RunOptions options;
  options.evaluate = false;
  const RunResult r = tiny::must(train(e, whole, *tiny::backend("cpu"), options));
  const ProbeState first{
      0, to_checkpoint(whole, initial_states(whole, e.scenario.seed), e.scenario, 0)};
  const ProbeState last{19, r.file.checkpoints.back()};
  const double a = tiny::must(probe_meaning(e, {first}, 1)).drift;
  const double b = tiny::must(probe_meaning(e, {last}, 1)).drift;
  const MeaningResult both = tiny::must(probe_meaning(e, {first, last}, 2));
  EXPECT_NE(a, b);
  EXPECT_NEAR(both.drift, std::sqrt((a * a + b * b) / 2), 1e-12);
  EXPECT_EQ(both.steps, (std::vector<int64_t>{0, 19}));
}

TEST(Ablation, RestoreUndoesOneCause) {
  const Experiment e =
      tiny::experiment(tiny::kNormalized, {{"loss.reduction", "sum"}, {"tpu.reduction", "mean"}});
  const Sharding reduction = restore(e, e.sharding, "reduction");
  EXPECT_EQ(reduction.reduction, Reduction::kSum);
  EXPECT_EQ(reduction.batchnorm, BatchNormSync::kPerCore);
  const Sharding norm = restore(e, e.sharding, "batch_norm");
  EXPECT_EQ(norm.reduction, Reduction::kMean);
  EXPECT_EQ(norm.batchnorm, BatchNormSync::kSynced);
}

// ---- the catalogue

ProbeState start_of(const Experiment& e) {
  const Program whole = e.whole();
  return {0, to_checkpoint(whole, initial_states(whole, e.scenario.seed), e.scenario, 0)};
}

// A model with all that a cause can act on, except for pairs and tokens.
Experiment rich(const Overrides& more = {}) {
  Overrides o = {{"tpu.batchnorm", "synced"},
                 {"optimizer.clip", "value"},
                 {"optimizer.clip_at", "0.02"},
                 {"optimizer.l2", "0.01"}};
  o.insert(o.end(), more.begin(), more.end());
  return tiny::experiment(tiny::kNormalized, o);
}

TEST(Causes, TheTableIsWhole) {
  const std::vector<std::string> names = cause_names();
  EXPECT_GE(names.size(), 20u);
  const Experiment e = rich();
  EXPECT_TRUE(present_causes(e, e.sharding).empty());
  EXPECT_EQ(faithful(e), e.sharding);
  for (const std::string& cause : possible_causes(e)) {
    const Sharding with = introduce(e, e.sharding, cause);
    const std::vector<std::string> present = present_causes(e, with);
    EXPECT_NE(std::ranges::find(present, cause), present.end()) << cause;
    const Sharding without = restore(e, with, cause);
    EXPECT_TRUE(present_causes(e, without).empty()) << cause;
    EXPECT_FALSE(describe(e, cause).meaning.empty()) << cause;
    EXPECT_FALSE(describe(e, cause).cure.empty()) << cause;
    // Sentences are built from both: a second colon must not occur, and a cure must say what to do.
    EXPECT_EQ(describe(e, cause).meaning.find(':'), std::string::npos) << cause;
    EXPECT_EQ(describe(e, cause).cure.find("look at the training script"), std::string::npos)
        << cause;
    EXPECT_FALSE(describe(e, cause).divergence.empty()) << cause;
    EXPECT_NE(digest(e.sharded(with)), digest(e.sharded(e.sharding))) << cause;
  }
  EXPECT_TRUE(exclusive("reduction", "scaled_twice"));
  EXPECT_FALSE(exclusive("reduction", "no_all_reduce"));
  // Causes that have nothing to act on are not possible.
  const std::vector<std::string> dense = possible_causes(tiny::experiment(tiny::kDense));
  for (const char* absent : {"batch_norm", "statistics", "clipping", "l2", "one_stream"})
    EXPECT_EQ(std::ranges::find(dense, absent), dense.end()) << absent;
}

TEST(Causes, EachIsInTheCatalogue) {
  for (const std::string& cause : cause_names()) {
    const CataloguedCause* row = catalogued(cause);
    ASSERT_NE(row, nullptr) << cause << ": no row in adapters/twinrun/causes.json";
    for (const std::string* text : {&row->means, &row->shows, &row->subject, &row->share})
      EXPECT_FALSE(text->empty()) << cause;
  }
}

// Each cause alone shows in the kinds of values that the documentation lists, and causes that are
// one program form one class.
TEST(Causes, EachShowsInItsKinds) {
  const Experiment e = rich();
  const Catalogue c = tiny::must(catalogue(e, {start_of(e)}, 1));
  const auto alone = [&](const std::string& cause, StepKind kind) {
    return std::ranges::find_if(
               c.effects, [&](const CauseEffect& x) { return x.cause == cause && x.kind == kind; })
        ->alone;
  };
  for (const std::string& cause : possible_causes(e)) {
    EXPECT_FALSE(c.class_of(cause).inert) << cause;
    const bool twins = cause == "reduction" || cause == "unscaled";
    EXPECT_EQ(c.class_of(cause).causes.size(), twins ? 2u : 1u) << cause;
    const bool of_statistics = cause.ends_with("statistics");
    const bool in_gradient = !of_statistics && !cause.starts_with("rate");
    EXPECT_EQ(alone(cause, StepKind::kGradient) > kMeaningThreshold, in_gradient) << cause;
    EXPECT_EQ(alone(cause, StepKind::kUpdate) > kMeaningThreshold, !of_statistics) << cause;
    const bool in_statistics =
        of_statistics || cause == "batch_norm" || cause == "averaged_variance" ||
        cause.find("shard") != std::string::npos || cause.starts_with("remainder");
    EXPECT_EQ(alone(cause, StepKind::kStatistics) > kMeaningThreshold, in_statistics) << cause;
    EXPECT_GT(alone(cause, StepKind::kEvaluation), kMeaningThreshold) << cause;
  }
  EXPECT_EQ(c.class_of("unscaled").divergence, "nothing: they are one program");
  EXPECT_NEAR(alone("rate_times_cores", StepKind::kUpdate), 7, 1e-6);
  EXPECT_NEAR(alone("rate_over_cores", StepKind::kUpdate), 7.0 / 8, 1e-6);
}

// Under plain SGD a learning rate and a scaled gradient give the same update; the gradient
// distinguishes them.
TEST(Causes, TheGradientPartsARateFromAReduction) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Catalogue c = tiny::must(catalogue(e, {start_of(e)}, 1));
  const auto divergence = [&](const std::string& a, const std::string& b) {
    return std::ranges::find_if(c.divergences,
                                [&](const Divergence& p) { return p.a == a && p.b == b; });
  };
  const auto p = divergence("reduction", "rate_times_cores");
  ASSERT_NE(p, c.divergences.end());
  EXPECT_EQ(p->differ, std::vector{StepKind::kGradient});
  EXPECT_NE(std::ranges::find(p->agree, StepKind::kUpdate), p->agree.end());
  EXPECT_NE(divergence("scaled_twice", "rate_over_cores"), c.divergences.end());
  EXPECT_NEAR(std::ranges::find_if(c.effects,
                                   [](const CauseEffect& x) {
                                     return x.cause == "scaled_twice" &&
                                            x.kind == StepKind::kGradient;
                                   })
                  ->alone,
              7.0 / 8, 1e-9);
}

// Adam divides by the gradient's size: a factor shows in the gradient, and hardly in the update.
TEST(Causes, AdamHidesAFactorInTheUpdate) {
  Experiment e = tiny::experiment(tiny::kDense, {{"optimizer.kind", "adam"}});
  e.sharding = introduce(e, e.sharding, "scaled_twice");
  const MeaningResult m = probe(e);
  ASSERT_EQ(m.causes.size(), 1u);
  EXPECT_EQ(m.kind, StepKind::kGradient);
  EXPECT_NEAR(m.drift, 7.0 / 8, 1e-9);
  EXPECT_LT(m.kinds[1].drift, 0.1);
  EXPECT_TRUE(m.explained());
}

// The advice names only settings that would change something: none that is set already, and no
// larger batch where the batch is large enough or cannot grow.
TEST(Causes, TheAdviceOnBatchNormFitsTheScenario) {
  const auto cure = [](Overrides keys) {
    keys.emplace_back("data.train", "512");
    return describe(tiny::experiment(tiny::kNormalized, keys), "batch_norm").cure;
  };
  const std::string guide =
      " (fewer than 32 samples per core may reduce accuracy, says Cloud TPU's troubleshooting "
      "guide)";
  EXPECT_EQ(cure({{"train.batch", "32"}}),
            "set tpu.batchnorm = \"synced\", or raise train.batch to 256" + guide);
  EXPECT_EQ(cure({{"train.batch", "256"}}), "set tpu.batchnorm = \"synced\"");
  EXPECT_EQ(cure({{"train.batch", "32"}, {"tpu.cores", "32"}}), "set tpu.batchnorm = \"synced\"")
      << "32 x 32 samples are not there";
  const Overrides groups = {{"tpu.batchnorm_group", "2"}, {"tpu.batchnorm", "synced"}};
  const auto in_groups = [&](const char* batch) {
    Overrides keys = groups;
    keys.emplace_back("train.batch", batch);
    return cure(keys);
  };
  EXPECT_EQ(in_groups("256"), "set tpu.batchnorm_group = 0");
  EXPECT_EQ(in_groups("32"), "set tpu.batchnorm_group = 0, or raise train.batch to 128" + guide);
  EXPECT_EQ(cure({{"train.batch", "256"}, {"tpu.batchnorm_group", "2"}}),
            "set tpu.batchnorm = \"synced\" and tpu.batchnorm_group = 0");
  EXPECT_EQ(cure({{"tpu.batchnorm", "synced"}}).find("set "), std::string::npos)
      << "the script does otherwise, not the scenario";
}

// Clipping to a norm undoes a factor of a gradient that is above the norm: the gradient is the same
// when the optimizer receives it.
TEST(Causes, ClippingHidesAFactor) {
  const Experiment e = tiny::experiment(
      tiny::kDense, {{"optimizer.clip", "global_norm"}, {"optimizer.clip_at", "0.1"}});
  const Catalogue c = tiny::must(catalogue(e, {start_of(e)}, 1));
  EXPECT_TRUE(c.class_of("unscaled").inert);
  EXPECT_NE(c.class_of("unscaled").divergence.find("clipping"), std::string::npos);
  EXPECT_FALSE(c.class_of("rate_times_cores").inert);
}

// Running statistics are linear in the batch statistics: an averaged variance is the mean of the
// cores' variances, and global statistics are those of the whole batch.
TEST(Causes, RunningStatisticsAreWhatTheySay) {
  const Experiment e = tiny::experiment(tiny::kNormalized);
  const auto after = [&](const Program& program, const char* name, size_t replica) {
    const auto engine = tiny::must(tiny::backend("cpu:f64")->prepare(program));
    const StepResult r =
        tiny::must(one_step(e, *engine, 0, initial_states(program, e.scenario.seed)));
    return as_doubles(r.after[replica].vars[static_cast<size_t>(program.state_index(name))]);
  };
  const char* variance = "batch_norm1/moving_variance";
  const char* mean = "batch_norm1/moving_mean";
  Sharding averaged = e.sharding, global = e.sharding, own = e.sharding;
  averaged.batchnorm = BatchNormSync::kAveraged;
  global.statistics = Statistics::kGlobal;
  own.batchnorm = BatchNormSync::kSynced;
  own.statistics = Statistics::kPerCore;
  const Program per_core = e.sharded(e.sharding);
  const std::vector<double> whole_mean = after(e.whole(), mean, 0),
                            whole_variance = after(e.whole(), variance, 0);
  std::vector<double> mean_of_cores(whole_variance.size(), 0.0);
  for (size_t r = 0; r < 8; ++r) {
    const std::vector<double> v = after(per_core, variance, r);
    for (size_t i = 0; i < v.size(); ++i) mean_of_cores[i] += v[i] / 8;
    EXPECT_EQ(after(e.sharded(own), mean, r), after(per_core, mean, r)) << r;
  }
  const std::vector<double> of_averaged = after(e.sharded(averaged), variance, 5);
  for (size_t i = 0; i < whole_variance.size(); ++i) {
    EXPECT_NEAR(of_averaged[i], mean_of_cores[i], 1e-13);
    EXPECT_LT(of_averaged[i], whole_variance[i]) << "without the variance of the means";
    EXPECT_NEAR(after(e.sharded(averaged), mean, 0)[i], whole_mean[i], 1e-13);
    EXPECT_NEAR(after(e.sharded(global), mean, 3)[i], whole_mean[i], 1e-13);
    EXPECT_NEAR(after(e.sharded(global), variance, 3)[i], whole_variance[i], 1e-13);
  }
}

// Nothing is clipped, before or after the all-reduce. The cause does nothing here, and the
// catalogue says what would show it.
TEST(Causes, AnInertCauseSaysWhatWouldShowIt) {
  const Experiment e = tiny::experiment(
      tiny::kDense, {{"optimizer.clip", "global_norm"}, {"optimizer.clip_at", "1000"}});
  const Catalogue c = tiny::must(catalogue(e, {start_of(e)}, 1));
  EXPECT_TRUE(c.class_of("clipping").inert);
  EXPECT_NE(c.class_of("clipping").divergence.find("clip_at"), std::string::npos);
  EXPECT_FALSE(c.class_of("no_all_reduce").inert);
}

// Each cause, introduced into the experiment, is found and restored, and nothing is left over.
TEST(Causes, EachIsFoundAndRestored) {
  const Experiment clean = rich();
  for (const std::string& cause : possible_causes(clean)) {
    Experiment e = clean;
    e.sharding = introduce(e, e.sharding, cause);
    const MeaningResult m = probe(e);
    const bool found =
        std::ranges::any_of(m.causes, [&](const ShardingCause& c) { return c.name == cause; });
    EXPECT_TRUE(found) << cause;
    EXPECT_TRUE(m.differs()) << cause;
    EXPECT_TRUE(m.explained()) << cause;
    EXPECT_TRUE(row(m, cause, "restored in S").explains) << cause;
  }
}

TEST(Causes, PairsAreFoundAndRestored) {
  const Experiment clean = rich();
  const std::vector<std::string> causes = possible_causes(clean);
  int pairs = 0;
  for (size_t a = 0; a < causes.size(); ++a) {
    for (size_t b = a + 1; b < causes.size(); ++b) {
      // test a fifth of them
      if (exclusive(causes[a], causes[b]) || (a * 7 + b) % 5 != 0) continue;
      Experiment e = clean;
      e.sharding = introduce(e, introduce(e, e.sharding, causes[a]), causes[b]);
      const MeaningResult m = probe(e);
      EXPECT_GE(m.causes.size(), 2u) << causes[a] << " + " << causes[b];
      EXPECT_TRUE(m.differs()) << causes[a] << " + " << causes[b];
      EXPECT_TRUE(m.explained()) << causes[a] << " + " << causes[b];
      ++pairs;
    }
  }
  EXPECT_GT(pairs, 20);
}

TEST(Causes, CleanProgramsMeanTheSame) {
  for (int seed = 1; seed <= 20; ++seed) {
    const Experiment e = rich({{"seed", std::to_string(seed)}});
    const MeaningResult m = probe(e);
    EXPECT_TRUE(m.causes.empty()) << seed;
    EXPECT_FALSE(m.differs()) << seed << ": " << m.drift;
  }
}

}  // namespace
}  // namespace twinrun
