// Tests the parts of the drill: cases from ids, scores from records, figures from scores, truth
// from conforming engines; and small drills, the last of which must fail.
#include "harness/drill/drill.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <new>
#include <set>

#include "backends/registry.h"
#include "harness/diagnose/classify.h"
#include "harness/drill/truth.h"
#include "tests/harness/tiny.h"

namespace twinrun::drill {
namespace {

using tiny::must;

TEST(DrillCases, AreDrawnFromTheirIds) {
  const auto ids = must(plan_cases({{"drill_mlp", "drill_cnn"}, 80, 7}));
  ASSERT_EQ(ids.size(), 80u);
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 80u);
  std::set<std::string> kinds;
  for (const std::string& id : ids) {
    const DrillCase a = must(draw_case(id)), b = must(draw_case(id));
    EXPECT_EQ(a.fault, b.fault);
    EXPECT_EQ(a.overrides, b.overrides);
    EXPECT_EQ(a.variant, b.variant);
    const bool fault = a.stratum == Stratum::kEngine || a.stratum == Stratum::kBias ||
                       a.stratum == Stratum::kInert || a.stratum == Stratum::kBoth;
    EXPECT_EQ(!a.fault.empty(), fault) << id;
    if (fault) kinds.insert(a.kind);
  }
  EXPECT_GT(kinds.size(), 12u);
}

TEST(DrillCases, AShortDrillIsStratifiedAndAPartOfALongOne) {
  const auto some = must(plan_cases({{"drill_mlp"}, 60, 1}));
  const auto many = must(plan_cases({{"drill_mlp"}, 600, 1}));
  std::set<Stratum> strata;
  for (const std::string& id : some) {
    strata.insert(must(parse_id(id)).stratum);
    EXPECT_NE(std::ranges::find(many, id), many.end()) << id;
  }
  EXPECT_EQ(strata.size(), std::size(kStrata));
  for (const std::string& id : must(plan_cases({{"drill_mlp"}, 40, 1, 'C'})))
    EXPECT_EQ(must(draw_case(id)).level, 'C');
}

TEST(DrillCases, RefuseWhatIsNoCase) {
  for (const char* id : {"", "engine", "engine.drill_mlp.1", "engine.drill_mlp.x.1",
                         "other.drill_mlp.1.1", "engine.drill_mlp.1.-1", "engine.no_such.1.1"}) {
    EXPECT_FALSE(draw_case(id).ok()) << id;
  }
}

// Values of Wilson's formula, computed elsewhere (R: prop.test(k, n, correct = FALSE)).
TEST(DrillMatrix, WilsonsInterval) {
  Rate rate{8, 10};
  rate.close();
  EXPECT_NEAR(rate.low, 0.4901625, 1e-6);
  EXPECT_NEAR(rate.high, 0.9433178, 1e-6);
  Rate none{0, 1000};
  none.close();
  EXPECT_EQ(none.low, 0);
  EXPECT_NEAR(none.high, 0.0038269, 1e-6);
}

CaseRecord record(Stratum stratum, VerdictClass verdict) {
  CaseRecord r;
  r.injected.id = std::string(to_string(stratum)) + ".drill_mlp.1.0";
  r.injected.stratum = stratum;
  r.injected.scenario = "drill_mlp";
  r.verdict = verdict;
  return r;
}

TEST(DrillScore, SaysWhatTheTruthAllows) {
  EXPECT_TRUE(score(record(Stratum::kClean, VerdictClass::kNoise)).right);
  EXPECT_FALSE(score(record(Stratum::kClean, VerdictClass::kEngineBug)).right);
  EXPECT_FALSE(score(record(Stratum::kClean, VerdictClass::kInconclusive)).right);

  CaseRecord fault = record(Stratum::kEngine, VerdictClass::kEngineBug);
  fault.injected.fault = "scale@a/b,from=3";
  fault.injected.op = "a/b";
  fault.truth = {
      .activated = true, .first_activated = 3, .replica = 2, .outside = true, .first_outside = 4};
  fault.findings = {{VerdictClass::kEngineBug, "engine:a/b", "a/b", 4, 2}};
  Score s = score(fault);
  EXPECT_EQ(s.kind, Kind::kEngineOutside);
  EXPECT_TRUE(s.right && s.flagged && s.op && s.step && s.core);
  fault.findings[0].op = "a/c";
  fault.findings[0].step = 2;
  fault.findings[0].core = -1;
  s = score(fault);
  EXPECT_TRUE(s.right && s.flagged);
  EXPECT_FALSE(s.op || s.step || s.core);
  fault.verdict = VerdictClass::kNoise;
  EXPECT_FALSE(score(fault).right);
  fault.truth.outside = false;
  EXPECT_EQ(score(fault).kind, Kind::kEngineInside);
  EXPECT_TRUE(score(fault).right);
  fault.truth.outside = true;
  fault.injected.level = 'C';
  EXPECT_EQ(score(fault).kind, Kind::kEngineOutside);
  fault.truth.tensors = 1.5;
  EXPECT_EQ(score(fault).kind, Kind::kEngineOutside);
  fault.truth.tensors = 0.5;  // the op is outside, but no tensor shows it
  EXPECT_EQ(score(fault).kind, Kind::kEngineInside);
  fault.truth = {};
  fault.truth.activated = false;
  EXPECT_EQ(score(fault).kind, Kind::kInert);
  fault.error = "it broke";
  EXPECT_FALSE(score(fault).right);

  CaseRecord cause = record(Stratum::kDeclared, VerdictClass::kSharding);
  cause.injected.cause = "reduction";
  cause.truth.meaning = 0.1;
  cause.truth.matters = "harmful";
  cause.effect = Effect::kHarmful;
  cause.findings = {{VerdictClass::kSharding, "unscaled|reduction", "", -1, -1}};
  EXPECT_TRUE(score(cause).right && score(cause).cause);
  EXPECT_EQ(score(cause).effect, true);
  cause.effect = Effect::kBeneficial;
  EXPECT_EQ(score(cause).effect, false);
  cause.truth.matters = "inside";
  cause.effect = Effect::kWithinMargin;
  EXPECT_TRUE(score(cause).right);
  EXPECT_EQ(score(cause).effect, true);
  cause.effect = Effect::kHarmful;
  EXPECT_EQ(score(cause).effect, false);
  cause.truth.matters = "open";
  EXPECT_FALSE(score(cause).effect);
  cause.findings[0].cause = "reductions";
  EXPECT_FALSE(score(cause).cause);
}

TEST(DrillRecord, ComesBackFromItsLine) {
  CaseRecord r = record(Stratum::kEngine, VerdictClass::kEngineBug);
  r.injected.overrides = {{"seed", "2"}, {"tpu.cores", "4"}};
  r.injected.fault = "scale@a/b";
  r.injected.magnitude = 1.5;
  r.truth.outside = true;
  r.truth.distance = std::numeric_limits<double>::infinity();
  r.truth.tensors = 0.25;
  r.findings = {{VerdictClass::kEngineBug, "engine:a/b", "a/b", 4, 2}};
  r.sealed = {4, 4};
  const std::string line = to_line(r);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(to_line(must(from_line(line))), line);
  EXPECT_FALSE(from_line(line.substr(0, line.size() / 2)).ok());
  std::string changed = line;
  changed.replace(changed.find("\"step\":4"), 8, "\"step\":5");
  EXPECT_NE(from_line(changed).error().what.find("changed after it was written"),
            std::string::npos);
  // Without the checksum, to see what the reader itself refuses.
  const std::string unchecked = line.substr(0, line.rfind(",\"checksum\"")) + "}";
  EXPECT_TRUE(from_line(unchecked).ok());
  // Numbers that are no integers of their size: converting them would be undefined.
  for (const char* bad : {"1e300", "2.5", "18446744073709551615"}) {
    for (const char* key : {"first_activated", "first_outside", "replica", "executions"}) {
      std::string changed = unchecked;
      const size_t at = changed.find("\"" + std::string(key) + "\":") + std::string(key).size() + 3;
      changed.replace(at, changed.find_first_of(",}", at) - at, bad);
      EXPECT_FALSE(from_line(changed).ok()) << changed;
    }
  }
  std::string unnamed = unchecked;
  unnamed.replace(unnamed.find("\"level\":\"A\""), 11, "\"level\":\"\"");
  EXPECT_FALSE(from_line(unnamed).ok());
}

Truth truth_of(const std::string& fault, const std::string& op, char level = 'A') {
  DrillCase c;
  c.level = level;
  c.id = "engine.drill_mlp.1.0";
  c.stratum = Stratum::kEngine;
  c.scenario = "drill_mlp";
  c.overrides = {{"tpu.cores", "2"}, {"train.steps", "4"}};
  c.variant = 5;
  c.fault = fault;
  c.op = op;
  TruthCache cache;
  const Experiment e = must(make_experiment(must(load_scenario(c.scenario, c.overrides))));
  return must(decide_truth(c, e, cache));
}

TEST(DrillTruth, IsWhatConformingEnginesCannotBe) {
  const Truth big = truth_of("scale@dense1/dot_general,from=2,core=1", "dense1/dot_general");
  EXPECT_TRUE(big.activated && big.outside);
  EXPECT_EQ(big.first_activated, 2);
  EXPECT_EQ(big.first_outside, 2);
  EXPECT_EQ(big.replica, 1);
  // A factor of one changes no bit.
  EXPECT_FALSE(truth_of("scale@dense1/dot_general,magnitude=1", "dense1/dot_general").activated);
  // The last bit of one element may change with any order of summation.
  const Truth small = truth_of("bit_flip@dense1/dot_general,magnitude=0", "dense1/dot_general");
  EXPECT_TRUE(small.activated);
  EXPECT_FALSE(small.outside);
  // An op that only moves values may not change even that bit.
  EXPECT_TRUE(truth_of("bit_flip@flatten1/reshape,magnitude=0", "flatten1/reshape").outside);
}

// At level C the truth is what the tensors of a step show.
TEST(DrillTruth, OfTensorsAlone) {
  const Truth big = truth_of("scale@dense1/dot_general,from=2,core=1", "dense1/dot_general", 'C');
  ASSERT_TRUE(big.tensors);
  EXPECT_GT(*big.tensors, 1);
  // 0 in place of the largest logit gives the same softmax, except for rounding.
  const Truth same = truth_of("unstable_softmax@loss/largest", "loss/largest", 'C');
  EXPECT_TRUE(same.outside);
  ASSERT_TRUE(same.tensors);
  EXPECT_LT(*same.tensors, 1);
  EXPECT_FALSE(truth_of("scale@dense1/dot_general", "dense1/dot_general").tensors);
}

// Compares every op of conforming engines that are not among the judges with the judges.
TEST(DrillTruth, ConformingEnginesAreInsideSlow) {
  struct Judge : StepObserver, TraceSink {
    std::vector<Variant> judges;
    double worst = 0;
    int64_t compared = 0, leaning = 0;
    std::string where;
    TraceSink* begin_step(int64_t, const States&, const StepInputs&) override { return this; }
    void on_op(const OpEvent& event) override {
      const bool collective = event.op().kind == OpKind::kAllReduce;
      if (class_of(event.op().kind) == OpClass::kSource || event.outputs[0].dtype() != DType::kF32)
        return;
      std::vector<Tensor> inputs = event.inputs[0];
      if (collective) {
        inputs.clear();
        for (const auto& part : event.inputs) inputs.push_back(part[0]);
      }
      const Comparison c = compare(judges, event.op(), inputs, event.outputs[0]);
      ++compared;
      leaning += std::fabs(c.lean) > kLean ? 1 : 0;
      if (c.distance <= worst) return;
      worst = c.distance;
      where = event.op().name;
    }
  };
  // Compares the tensors of every step with those of the judges, too.
  struct Tensors : Judge {
    std::optional<StepJudges> whole;
    States before;
    StepInputs fed;
    double step_worst = 0;
    TraceSink* begin_step(int64_t, const States& states, const StepInputs& inputs) override {
      before = states;
      fed = inputs;
      return this;
    }
    void end_step(int64_t step, const States& after, const StepOutputs& outputs) override {
      step_worst = std::max(step_worst, must(whole->distance(step, before, fed, after, outputs)));
    }
  };
  int64_t compared = 0, leaning = 0;
  for (const char* scenario : {"drill_mlp", "drill_cnn", "drill_triplet"}) {
    const Experiment e = must(make_experiment(must(load_scenario(scenario, {{"tpu.cores", "2"}}))));
    for (const uint64_t seed : {11, 12, 13}) {
      const auto engine = must(make_backend("honest:" + std::to_string(seed), {}));
      Tensors judge;
      judge.judges = conforming_judges(engine->capabilities());
      const Program program = as_computed_by(engine->capabilities(), e.sharded(e.sharding));
      judge.whole.emplace(must(StepJudges::make(judge.judges, program)));
      RunOptions options;
      options.steps = 2;
      options.observer = &judge;
      options.evaluate = options.digest_states = false;
      must(train(e, program, *engine, options));
      EXPECT_LE(judge.step_worst, 1) << scenario << " honest:" << seed;
      EXPECT_LE(judge.worst, 1) << scenario << " honest:" << seed << " " << judge.where;
      compared += judge.compared;
      leaning += judge.leaning;
    }
  }
  EXPECT_GT(compared, 1000);
  // A case of bias requires that every activation is biased. Of the single results of conforming
  // engines, hardly any may be.
  EXPECT_LT(static_cast<double>(leaning), 0.02 * static_cast<double>(compared));
}

// Another program in binary64 has another meaning; the same program has not.
TEST(DrillTruth, OfACause) {
  DrillCase c;
  c.stratum = Stratum::kDeclared;
  c.scenario = "drill_mlp";
  c.overrides = {{"tpu.cores", "4"}};
  TruthCache cache;
  const Truth plain = must(
      decide_truth(c, must(make_experiment(must(load_scenario(c.scenario, c.overrides)))), cache));
  EXPECT_LT(plain.meaning, 1e-12);
  EXPECT_EQ(plain.matters, "");
  c.overrides.emplace_back("tpu.reduction", "sum");
  const Truth sum = must(
      decide_truth(c, must(make_experiment(must(load_scenario(c.scenario, c.overrides)))), cache));
  EXPECT_GT(sum.meaning, 0.1);
  EXPECT_EQ(sum.matters, "beneficial");
}

struct Drilling {
  Folder folder;
  DrillOptions options;
  Drilling() {
    options.directory = folder / "drill";
    options.threads = 2;
  }
  std::vector<CaseRecord> run() { return must(run_drill(options, nullptr, nullptr)).records; }
  // The file that a process which died leaves of a case that was running.
  void leave_begun(const std::string& id) const {
    std::filesystem::create_directories(folder / "drill/begun");
    std::ofstream(folder / "drill/begun/" + id) << std::flush;
  }
  void fails_with(const std::string& part, Error::Kind kind = Error::Kind::kMachine) const {
    const auto ran = run_drill(options, nullptr, nullptr);
    ASSERT_FALSE(ran.ok());
    EXPECT_EQ(ran.error().kind, kind);
    EXPECT_NE(ran.error().message().find(part), std::string::npos) << ran.error().message();
  }
  int64_t lines() const {
    std::ifstream in(folder / "drill/cases.jsonl");
    int64_t n = 0;
    for (std::string line; std::getline(in, line);) ++n;
    return n;
  }
};

TEST(DrillRunner, GoesOnWhereItStoppedAndLosesNoError) {
  Drilling d;
  d.options.ids = {"clean.drill_mlp.1.0", "engine.no_such_scenario.1.0"};
  const auto first = d.run();
  ASSERT_EQ(first.size(), 2u);
  EXPECT_EQ(first[0].error, "");
  EXPECT_NE(first[1].error, "");
  EXPECT_EQ(summarise(first).errors, 1);
  d.options.ids.push_back("clean.drill_mlp.1.1");
  d.options.resume = true;
  std::atomic<int> begun = 0;
  d.options.sabotage = [&](Evidence&) { ++begun; };
  const auto both = d.run();
  ASSERT_EQ(both.size(), 3u);
  EXPECT_EQ(to_line(both[0]), to_line(first[0]));  // including the seconds: it was not run again
  EXPECT_GT(begun, 0);
}

TEST(DrillRunner, ALineThatWasChangedIsRefused) {
  Drilling d;
  d.options.ids = {"engine.no_such_scenario.1.0", "engine.no_such_scenario.1.1"};
  d.run();
  const std::string path = d.folder / "drill/cases.jsonl";
  std::stringstream whole;
  whole << std::ifstream(path).rdbuf();
  std::string text = whole.str();
  text.replace(text.find("\"not_learnt\":false"), 18, "\"not_learnt\":true ");
  std::ofstream(path, std::ios::trunc) << text;
  d.options.resume = true;
  const auto changed = run_drill(d.options, nullptr, nullptr);
  ASSERT_FALSE(changed.ok());
  EXPECT_EQ(changed.error().where, path + ":1");
  // The case of a last line that was cut short runs again; so does one whose line lacks sectors of
  // the disk after a loss of power.
  std::ofstream(path, std::ios::trunc) << whole.str().substr(0, whole.str().size() - 9);
  EXPECT_EQ(d.run().size(), 2u);
  std::string holed = whole.str();
  std::fill_n(holed.begin() + static_cast<std::ptrdiff_t>(holed.find('\n')) + 1, 100, '\0');
  std::ofstream(path, std::ios::trunc) << holed;
  EXPECT_EQ(d.run().size(), 2u);
}

TEST(DrillRunner, TwoResultsOfOneCaseAreRefused) {
  Drilling d;
  d.options.ids = {"clean.drill_mlp.1.0"};
  CaseRecord record = d.run().at(0);
  const std::string path = d.folder / "drill/cases.jsonl";
  record.seconds += 1;  // of another machine
  std::ofstream(path, std::ios::app) << to_line(record) << "\n";
  d.options.resume = true;
  EXPECT_EQ(d.run().size(), 1u);
  record.executions += 1;
  std::ofstream(path, std::ios::app) << to_line(record) << "\n";
  d.fails_with("DETERMINISM IS BROKEN", Error::Kind::kInput);
  record.setting = "of another version";
  std::ofstream(path, std::ios::trunc) << to_line(record) << "\n";
  d.fails_with("was recorded with another contract, version, scenario or program",
               Error::Kind::kInput);
}

TEST(DrillRunner, SharesAreTheWholeInTurn) {
  Drilling d;
  d.options.ids = {"engine.no_such_scenario.1.0", "engine.no_such_scenario.1.1",
                   "engine.no_such_scenario.1.2"};
  d.options.share = 1;
  d.options.shares = 2;
  const auto records = d.run();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].injected.id, d.options.ids[1]);
}

TEST(DrillRunner, ACaseOfAScenarioInAFileIsKnownToRun) {
  Drilling d;
  std::ofstream(d.folder / "dense.toml") << resolved_toml(tiny::experiment(tiny::kDense).scenario);
  d.options.ids = {"clean." + d.folder / "dense.toml" + ".1.0"};
  bool known = false;
  d.options.sabotage = [&](Evidence&) {
    known = !std::filesystem::is_empty(d.folder / "drill/begun");
  };
  EXPECT_EQ(d.run().at(0).error, "");
  EXPECT_TRUE(known);
}

// A case during which the process died runs once more, in a process of its own. If that dies, too,
// the case counts as a miss, and the other cases run.
TEST(DrillRunner, ACaseInWhichTheProcessDiedDoesNotStopTheDrill) {
  Drilling d;
  d.options.ids = {"clean.drill_mlp.1.0", "clean.drill_mlp.1.1", "clean.drill_mlp.1.2"};
  d.options.resume = true;
  d.leave_begun(d.options.ids[0]);
  const pid_t me = ::getpid();
  d.options.sabotage = [&](Evidence&) {
    if (::getpid() != me) std::abort();
  };
  const auto records = d.run();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_NE(records[0].error.find("the process died"), std::string::npos) << records[0].error;
  EXPECT_FALSE(score(records[0]).right);
  EXPECT_EQ(records[1].error, "");
  EXPECT_EQ(records[2].error, "");
  // It ran beside one that died, and is well: --resume runs every case anew that ended in an error.
  d.options.sabotage = nullptr;
  const auto again = d.run();
  EXPECT_EQ(again[0].error, "");
  EXPECT_EQ(to_line(again[1]), to_line(records[1]));
  EXPECT_TRUE(std::filesystem::is_empty(d.folder / "drill/begun"));
}

// A machine without memory kills with SIGKILL, which is no result of a case.
TEST(DrillRunner, ACaseThatTheMachineKilledIsNotRecorded) {
  Drilling d;
  d.options.ids = {"clean.drill_mlp.1.0", "clean.drill_mlp.1.1"};
  d.options.resume = true;
  d.leave_begun(d.options.ids[0]);
  const pid_t me = ::getpid();
  d.options.sabotage = [&](Evidence&) {
    if (::getpid() != me) ::kill(::getpid(), SIGKILL);
  };
  d.fails_with("clean.drill_mlp.1.0");
  EXPECT_EQ(d.lines(), 1);  // of the other case
  d.options.sabotage = nullptr;
  for (const CaseRecord& r : d.run()) EXPECT_EQ(r.error, "");
}

TEST(DrillRunner, NoMemoryIsNoResult) {
  Drilling d;
  d.options.ids = {"clean.drill_mlp.1.0"};
  d.options.resume = true;
  d.options.sabotage = [](Evidence&) { throw std::bad_alloc(); };
  d.fails_with("out of memory");
  EXPECT_EQ(d.lines(), 0);
  d.options.sabotage = nullptr;
  EXPECT_EQ(d.run().at(0).error, "");
}

// The limit of the size of files stands in for a full disk: records still fit, the runs do not.
TEST(DrillRunner, AFullDiskIsNoResult) {
  Drilling d;
  d.options.ids = {"clean.drill_mlp.1.0", "engine.drill_mlp.1.3"};
  d.options.resume = true;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{16384, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  d.fails_with("File too large");
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(d.lines(), 0);
  for (const CaseRecord& r : d.run()) EXPECT_EQ(r.error, "");
}

// The part of the drill that the test suite runs: few cases of every stratum. The whole drill is
// `./dev drill`; docs/results/drill.md has its figures.
TEST(DrillSlow, FewCasesOfEveryStratum) {
  Drilling d;
  d.options.plan = {{"drill_mlp", "drill_dropout", "drill_triplet"}, 48, 3, 'A'};
  const DrillSummary s = summarise(d.run());
  // A part of the biases below the bound is missed; docs/results/drill.md says how large a part.
  for (const std::string& miss : s.misses) {
    if (!miss.starts_with("bias.")) ADD_FAILURE() << miss;
  }
  EXPECT_EQ(s.cases, 48);
  EXPECT_EQ(s.false_alarms.k, 0);
  EXPECT_GE(s.false_alarms.n, 15);
  EXPECT_GE(s.faults.size(), 8u);
}

// The same cases, judged by a diagnosis of which one part is broken: the drill must detect each.
struct Sabotage {
  const char* what;
  std::vector<std::string> cases;
  std::function<void(Evidence&)> hand;
};

class DrillSabotageSlow : public testing::TestWithParam<Sabotage> {};

TEST_P(DrillSabotageSlow, IsNoticed) {
  Drilling d;
  d.options.ids = GetParam().cases;
  const DrillSummary whole = summarise(d.run());
  for (const std::string& miss : whole.misses) ADD_FAILURE() << "as it is: " << miss;
  d.options.sabotage = GetParam().hand;
  const auto records = d.run();
  const DrillSummary broken = summarise(records);
  std::string said;
  for (const CaseRecord& r : records) said += r.injected.id + ": " + r.headline + "\n";
  EXPECT_EQ(broken.misses.size(), GetParam().cases.size()) << said;
}

INSTANTIATE_TEST_SUITE_P(Parts, DrillSabotageSlow,
                         testing::Values(
                             // Cases of rounding toward zero, at 2.0 and 1.4 times the bound.
                             Sabotage{"TenTimesTheRadius",
                                      {"engine.drill_triplet.1.21", "engine.drill_cnn.1.14"},
                                      [](Evidence& e) {
                                        std::erase_if(e.violations, [](const Violation& v) {
                                          return v.what != Violation::What::kLink &&
                                                 v.verdict.worst <= 10;
                                        });
                                      }},
                             // A script that feeds cores other samples than theirs: no op is wrong.
                             Sabotage{"NobodyLooksAtTheFeed",
                                      {"hidden.drill_mlp.3.0", "hidden.drill_mlp.3.1"},
                                      [](Evidence& e) {
                                        std::erase_if(e.violations, [](const Violation& v) {
                                          return v.what == Violation::What::kFeed;
                                        });
                                      }},
                             Sabotage{"ASwitchIgnored",
                                      {"declared.drill_mlp.1.0"},
                                      [](Evidence& e) {
                                        std::erase_if(e.meaning.causes, [](const ShardingCause& c) {
                                          return c.name == "reduction";
                                        });
                                        std::erase_if(e.meaning.rows, [](const AblationRow& r) {
                                          return r.cause == "reduction";
                                        });
                                        e.meaning.residual = e.meaning.drift;
                                        for (KindDrift& kind : e.meaning.kinds)
                                          kind.residual = kind.drift;
                                      }}),
                         [](const auto& info) { return info.param.what; });

}  // namespace
}  // namespace twinrun::drill
