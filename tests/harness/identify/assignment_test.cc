// Tests how the rows fed to each core, and the cores that reduce together, are found: from tensors,
// and from what ops read.
#include "harness/sharding/assignment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "backends/core/wrapped.h"
#include "backends/faults/other_program.h"
#include "harness/diagnose/pipeline.h"
#include "harness/identify/judge_steps.h"
#include "harness/run/one_step.h"
#include "tests/harness/subjects.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

using Rows = std::vector<int32_t>;
using Change = std::function<Sharding(Sharding)>;

Rows own(int n) {
  Rows rows(static_cast<size_t>(n));
  std::iota(rows.begin(), rows.end(), 0);
  return rows;
}

// The rows of whole shards, core by core, of a batch of 32.
Rows shards(std::vector<int> of_cores) { return rows_of_shards(own(32), of_cores); }

// A foreign engine that shows tensors only and whose script runs a changed program.
class Script : public WrappedBackend {
 public:
  Script(std::unique_ptr<Backend> inner, Change change)
      : WrappedBackend(with_other_program(std::move(inner), std::move(change)),
                       [](Capabilities& c) { c.op_trace = c.deterministic = false; }) {}
};

std::unique_ptr<Backend> f32() { return tiny::backend("tpu", 1, DotPrecision::kF32); }

Change deals(Rows features, Rows labels, Rows draws = {}) {
  return [=](Sharding s) {
    s.feeding.deal = {features, labels, draws};
    return s;
  };
}
Change deals(const Rows& rows) { return deals(rows, rows); }

std::string proposals(const Identification& m) {
  std::string out = "outcome " + std::to_string(static_cast<int>(m.outcome)) + ", ratio " +
                    std::to_string(m.ratio) + " of " + std::to_string(m.threshold);
  const auto tell = [&](const Explanation& x) {
    for (const auto& part : x.parts)
      out += "\n  " + part.cause + (part.sharding ? ": " + part.sharding->cause.meaning : "") +
             " " + std::to_string(x.ratio);
  };
  for (const Explanation& x : m.explanations) tell(x);
  if (m.harmless) tell(*m.harmless);
  for (size_t i = 0; i < std::min<size_t>(m.outside.size(), 8); ++i)
    out += "\n  " + m.outside[i].tensor + " on " + std::to_string(m.outside[i].replica) + " at " +
           std::to_string(m.outside[i].step) + " " + m.outside[i].pattern;
  return out;
}

// Judges a run as a diagnosis judges one that is screened.
Identification judged(const Experiment& e, Backend& subject, int64_t steps = 4, bool pairs = true) {
  const Program asked = e.sharded(e.sharding);
  tiny::KeptSteps kept;
  RunOptions options;
  options.observer = &kept;
  options.evaluate = false;
  options.steps = steps;
  tiny::must(train(e, asked, subject, options));
  IdentifyOptions how;
  how.formulas = false;  // the diagnosis does not search for them any sooner
  how.pairs = pairs;
  StepsJudge judge(e, asked, subject, how);
  return tiny::must(judge.match(kept.states, steps));
}
Identification judged(const Experiment& e, const Change& change) {
  Script script(f32(), change);
  return judged(e, script);
}

Experiment dense(int cores, const Overrides& more = {}) {
  Overrides o = {{"tpu.cores", std::to_string(cores)}};
  o.insert(o.end(), more.begin(), more.end());
  return tiny::experiment(tiny::kDense, o);
}

void expect_harmless(const Identification& m, const std::string& words) {
  EXPECT_EQ(m.outcome, Identification::Outcome::kInside) << proposals(m);
  ASSERT_TRUE(m.harmless) << proposals(m);
  ASSERT_EQ(m.harmless->parts.size(), 1u);
  EXPECT_NE(m.harmless->parts[0].sharding->cause.meaning.find(words), std::string::npos)
      << proposals(m);
  EXPECT_TRUE(m.outside.empty());
}
void expect_cause(const Identification& m, const std::string& name, const std::string& words) {
  EXPECT_EQ(m.outcome, Identification::Outcome::kExplained) << proposals(m);
  ASSERT_EQ(m.explanations.size(), 1u) << proposals(m);
  ASSERT_EQ(m.explanations[0].parts.size(), 1u) << proposals(m);
  EXPECT_EQ(m.explanations[0].parts[0].cause, name) << proposals(m);
  ASSERT_TRUE(m.explanations[0].parts[0].sharding) << proposals(m);
  EXPECT_NE(m.explanations[0].parts[0].sharding->cause.meaning.find(words), std::string::npos)
      << proposals(m);
}

TEST(Assignment, TheAlgebraOfRows) {
  EXPECT_EQ(rows_in_blocks(2, 4, 4, 0), own(8));
  EXPECT_EQ(rows_in_blocks(2, 4, 1, 0), (Rows{0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(rows_in_blocks(2, 4, 2, 0), (Rows{0, 1, 4, 5, 2, 3, 6, 7}));
  EXPECT_EQ(rows_in_blocks(2, 2, 2, 3), (Rows{3, 0, 1, 2}));
  EXPECT_EQ(rows_of_shards(own(6), {2, 0, 2}), (Rows{4, 5, 0, 1, 4, 5}));
  EXPECT_TRUE(is_permutation(rows_in_blocks(3, 4, 2, 5)));
  EXPECT_FALSE(is_permutation({0, 1, 1}));
  EXPECT_TRUE(is_own(own(5)));
  EXPECT_FALSE(is_own({1, 0}));
}

TEST(Assignment, NamesOfDeals) {
  const Experiment e = dense(4);
  const auto meaning = [&](const Rows& features, const Rows& labels) {
    return dealt_otherwise(e, {features, labels, {}}).cause.meaning;
  };
  const auto both = [&](const Rows& rows) { return meaning(rows, rows); };
  EXPECT_EQ(
      both(rows_in_blocks(4, 8, 1, 0)),
      "core k is fed rows k, k + 4, k + 8, ... of each batch, as DistributedSampler deals, where "
      "the scenario gives it 8 neighbouring rows");
  EXPECT_EQ(both(shards({1, 0, 2, 3})),
            "the shards of each batch go to other cores (core 0 shard 1, core 1 shard 0)");
  EXPECT_EQ(
      both(shards({0, 1, 2, 1})),
      "cores are fed another core's samples (core 3 shard 1), so that rows 24-31 of each batch "
      "are left out, and 8-15 count twice");
  Rows lost = own(32);
  lost[5] = 9;
  EXPECT_EQ(both(lost), "row 5 of each batch is left out, and 9 counts twice");
  lost[6] = 9;
  EXPECT_EQ(both(lost), "rows 5-6 of each batch are left out, and 9 counts more than once");
  EXPECT_EQ(meaning(own(32), rows_in_blocks(4, 8, 8, 31)),
            "each sample is trained with the label of the sample 1 row earlier of the batch");
  EXPECT_EQ(
      meaning({}, shards({0, 2, 1, 3})),
      "inputs and labels come from different shards (core 1: inputs of shard 1, labels of shard "
      "2; core 2: inputs of shard 2, labels of shard 1)");
}

// The programs of the algebra compute what their descriptions say: per-core gradients before and
// after the reduction, and running statistics that each core updates by itself.
TEST(Assignment, TheProgramsAreWhatTheySay) {
  const Experiment e = tiny::experiment(tiny::kNormalized, {{"tpu.cores", "4"}});
  States start;
  const auto tensors_of = [&](const Sharding& s) {
    const Program program = e.sharded(s);
    const auto engine = tiny::must(tiny::backend("cpu:f64")->prepare(program));
    if (start.empty()) {  // cores whose statistics have diverged
      start = initial_states(program, e.scenario.seed);
      const auto own = tiny::must(tiny::backend("cpu:f64")->prepare(e.sharded(e.sharding)));
      start = tiny::must(one_step(e, *own, 0, start)).after;
    }
    const StepResult r = tiny::must(one_step(e, *engine, 1, start));
    std::map<std::string, std::vector<std::vector<double>>> out;
    for (size_t core = 0; core < 4; ++core) {
      for (size_t o = 0; o < program.outputs.size(); ++o)
        out[program.outputs[o].name].push_back(as_doubles(r.outputs[core][o]));
      for (size_t v = 0; v < program.state.size(); ++v)
        out[program.state[v].name].push_back(as_doubles(r.after[core].vars[v]));
    }
    return out;
  };
  const auto expect_mean = [](const std::vector<double>& is,
                              const std::vector<std::vector<double>>& of, std::vector<size_t> cores,
                              double factor) {
    for (size_t i = 0; i < is.size(); ++i) {
      double sum = 0;
      for (const size_t core : cores) sum += of[core][i];
      EXPECT_NEAR(is[i], factor * sum / static_cast<double>(cores.size()), 1e-12);
    }
  };
  Sharding s = e.sharding;
  s.reduce_gradients = false;
  s.scaling = Scaling::kNever;
  const auto own = tensors_of(s).at("dense1/kernel.grad");
  s = e.sharding;
  s.reduction_groups = {2, false};
  const auto neighbours = tensors_of(s).at("dense1/kernel.grad");
  expect_mean(neighbours[1], own, {0, 1}, 0.5);  // divided by all four cores
  expect_mean(neighbours[2], own, {2, 3}, 0.5);
  s.reduction_groups.strided = true;
  s.scaling = Scaling::kByGroup;
  const auto strided = tensors_of(s).at("dense1/kernel.grad");
  expect_mean(strided[1], own, {1, 3}, 1);
  expect_mean(strided[2], own, {0, 2}, 1);
  s = e.sharding;
  s.unreduced = {"dense1/kernel"};
  const auto kept = tensors_of(s);
  expect_mean(kept.at("dense1/kernel.grad")[3], own, {3}, 1);
  EXPECT_EQ(kept.at("dense2/kernel.grad")[3], kept.at("dense2/kernel.grad")[0]);
  const auto as_asked = tensors_of(e.sharding);
  const char* variance = "batch_norm1/moving_variance";
  s = e.sharding;
  s.statistics = Statistics::kFromFirst;
  const auto from_first = tensors_of(s).at(variance);
  EXPECT_EQ(from_first[0], as_asked.at(variance)[0]);
  const auto at = static_cast<size_t>(e.sharded(s).state_index(variance));
  // The momentum is 0.9; the program holds 1 - 0.9 as a float32 number.
  const double kept_share = 1 - static_cast<double>(0.1F);
  for (size_t i = 0; i < from_first[2].size(); ++i) {
    const double first = as_doubles(start[0].vars[at])[i], third = as_doubles(start[2].vars[at])[i];
    EXPECT_NEAR(from_first[2][i] - as_asked.at(variance)[2][i], kept_share * (first - third),
                1e-12);
  }
  // Averaged over cores that all held the same statistics before the step.
  start = initial_states(e.sharded(e.sharding), e.scenario.seed);
  const auto each = tensors_of(e.sharding).at(variance);
  s.statistics = Statistics::kAveraged;
  expect_mean(tensors_of(s).at(variance)[2], each, {0, 1, 2, 3}, 1);
}

// ---- harmless: every sample counts once, with its own label

TEST(Assignment, StridesAreNoFault) {
  const Experiment e = dense(4);
  expect_harmless(judged(e, deals(rows_in_blocks(4, 8, 1, 0))), "k + 4, k + 8");
  expect_harmless(judged(e, deals(rows_in_blocks(4, 8, 2, 0))), "blocks of 2 rows");
}

TEST(Assignment, ShardsOnOtherCoresAreNoFault) {
  const Experiment e = dense(4);
  expect_harmless(judged(e, deals(shards({2, 0, 3, 1}))), "core 0 shard 2, core 1 shard 0");
  expect_harmless(judged(e, deals(rows_in_blocks(4, 8, 8, 3))), "begin 3 later");
}

// With per-core batch norm, samples on the same core affect each other, so strided rows change
// which samples are normalised together. That is still no fault.
TEST(Assignment, StridesUnderBatchNormOfEachCoreAndDropout) {
  const Experiment e = tiny::experiment(tiny::kNormalized, {{"tpu.cores", "4"}});
  const Rows strided = rows_in_blocks(4, 8, 1, 0);
  expect_harmless(judged(e, deals(strided)), "k + 4, k + 8");
  // The same where the random draws follow the samples.
  expect_harmless(judged(e, deals(strided, strided, strided)), "k + 4, k + 8");
}

// No rule gives this permutation. The cores' losses show that the rows are dealt in another way,
// and the gradients, which are as expected, that every sample is there.
TEST(Assignment, AnyPermutationIsNoFault) {
  const Experiment e = dense(4);
  Rows rows = own(32);
  for (size_t i = 0; i < rows.size(); ++i) std::swap(rows[i], rows[(i * 7 + 3) % 32]);
  ASSERT_TRUE(is_permutation(rows));
  expect_harmless(judged(e, deals(rows)), "their mean and every gradient");
}

// ---- wrong: samples are lost, or have other labels, or reductions differ

TEST(Assignment, AShardThatIsFedTwice) {
  const Experiment e = dense(4);
  expect_cause(judged(e, deals(shards({0, 1, 2, 1}))), "missing_samples", "core 3 shard 1");
  // One of several shards that are dealt in strides.
  expect_cause(judged(e, deals(rows_of_shards(rows_in_blocks(4, 8, 1, 0), {0, 1, 1, 3}))),
               "missing_samples", "left out");
  const Experiment synced =
      tiny::experiment(tiny::kNormalized, {{"tpu.cores", "4"}, {"tpu.batchnorm", "synced"}});
  expect_cause(judged(synced, deals(shards({0, 1, 0, 3}))), "missing_samples", "core 2 shard 0");
}

TEST(Assignment, LabelsOfOtherSamples) {
  const Experiment e = dense(4);
  expect_cause(judged(e, deals({}, shards({1, 2, 3, 0}))), "labels_apart",
               "core 0: inputs of shard 0, labels of shard 1");
  expect_cause(judged(e, deals({}, shards({0, 2, 1, 3}))), "labels_apart",
               "core 1: inputs of shard 1, labels of shard 2");
  expect_cause(judged(e, deals({}, rows_in_blocks(4, 8, 8, 1))), "labels_apart", "1 row later");
}

TEST(Assignment, GradientsReducedInGroups) {
  const Experiment e = dense(4);
  for (const bool strided : {false, true}) {
    const Identification m = judged(e, [&](Sharding s) {
      s.reduction_groups = {2, strided};
      s.scaling = Scaling::kByGroup;
      return s;
    });
    expect_cause(m, "grouped_reduction",
                 strided ? "averaged within groups of every 2-th core" : "of 2 neighbouring cores");
  }
}

TEST(Assignment, AGradientThatIsNeverReduced) {
  const Experiment e = dense(2);
  expect_cause(judged(e,
                      [](Sharding s) {
                        s.unreduced = {"dense1/kernel"};
                        return s;
                      }),
               "unreduced_gradients", "its own samples for dense1/kernel,");
}

TEST(Assignment, BatchNormOverOtherGroups) {
  const Experiment e =
      tiny::experiment(tiny::kNormalized, {{"tpu.cores", "4"}, {"tpu.batchnorm", "synced"}});
  for (const bool strided : {false, true}) {
    const Identification m = judged(e, [&](Sharding s) {
      s.batchnorm_group = 2;
      s.batchnorm_strided = strided;
      return s;
    });
    expect_cause(m, "grouped_batch_norm", strided ? "every 2-th core" : "2 neighbouring cores");
  }
}

TEST(Assignment, RunningStatisticsOfOtherMakes) {
  const Experiment e = tiny::experiment(tiny::kNormalized, {{"tpu.cores", "2"}});
  const Identification averaged = judged(e, [](Sharding s) {
    s.statistics = Statistics::kAveraged;
    return s;
  });
  EXPECT_EQ(averaged.outcome, Identification::Outcome::kExplained) << proposals(averaged);
  ASSERT_EQ(averaged.explanations.size(), 1u) << proposals(averaged);
  EXPECT_EQ(averaged.explanations[0].parts[0].cause, "averaged_statistics") << proposals(averaged);
  expect_harmless(judged(e,
                         [](Sharding s) {
                           s.statistics = Statistics::kFromFirst;
                           return s;
                         }),
                  "broadcast_buffers");
}

// Engine faults are not explained as deals: one core left out of a reduction, a wrong loss on one
// core, a wrong forward pass, a scaled gradient.
void expect_unexplained(bool pairs) {
  const Experiment e = dense(4);
  for (const char* fault :
       {"drop_core@dense2/kernel.grad.all_reduce,core=3", "scale@loss/value,core=1,magnitude=1.01",
        "drop_k_tail@dense1/dot_general", "scale@dense1/kernel.grad.all_reduce,magnitude=1.5"}) {
    Script script(tiny::faulty(f32(), fault), [](Sharding s) { return s; });
    const Identification m = judged(e, script, 4, pairs);
    EXPECT_EQ(m.outcome, Identification::Outcome::kUnexplained) << fault << ": " << proposals(m);
    EXPECT_FALSE(m.harmless) << fault;
  }
}
TEST(Assignment, AFaultIsNoDeal) { expect_unexplained(false); }
TEST(AssignmentSlow, AFaultIsNoDealBesideAnotherCause) { expect_unexplained(true); }

// ---- read from the ops' operands

TEST(Assignment, ReadFromTheOps) {
  const Scenario scenario =
      tiny::scenario(tiny::kDense, {{"tpu.cores", "4"}, {"train.steps", "4"}});
  const auto diagnosed = [&](const Change& change) {
    DiagnoseOptions o;
    const Folder folder;
    o.directory = folder / "out";
    o.quick = true;
    o.make_subject = [&](const BackendOptions&) -> Result<std::unique_ptr<Backend>> {
      return with_other_program(tiny::backend("tpu"), change);
    };
    return tiny::must(diagnose(scenario, o, nullptr, nullptr)).report;
  };
  const Report strided = diagnosed(deals(rows_in_blocks(4, 8, 1, 0)));
  EXPECT_NE(strided.verdict, VerdictClass::kEngineBug) << strided.headline;
  EXPECT_NE(strided.verdict, VerdictClass::kSharding) << strided.headline;
  EXPECT_TRUE(std::ranges::any_of(strided.notes, [](const std::string& note) {
    return note.find("k + 4, k + 8") != std::string::npos;
  }));
  const Report apart = diagnosed(deals({}, shards({1, 2, 3, 0})));
  ASSERT_FALSE(apart.findings.empty());
  EXPECT_EQ(apart.findings.front().cause, "labels_apart") << apart.headline;
  const Report twice = diagnosed(deals(shards({0, 1, 2, 1})));
  ASSERT_FALSE(twice.findings.empty());
  EXPECT_EQ(twice.findings.front().cause, "missing_samples") << twice.headline;
  EXPECT_NE(twice.findings.front().sentence.find("core 3 shard 1"), std::string::npos);
}

}  // namespace
}  // namespace twinrun
