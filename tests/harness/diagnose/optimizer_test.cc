// Tests optimizers on the whole path: scenario, programs of both stacks, engines under the oracle,
// evaluation, verdict.
#include "program/graph/optimizer.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "harness/diagnose/pipeline.h"
#include "harness/run/evaluate.h"
#include "scenarios/model.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

using Algebra = OptimizerSpec::Algebra;

Report diagnosed(const Overrides& overrides) {
  const Folder folder;
  DiagnoseOptions options;
  options.directory = folder / "out";
  Overrides all = {{"diagnose.seeds", "2"}, {"diagnose.margin", "1.0"}, {"train.steps", "8"}};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return tiny::must(diagnose(tiny::scenario(tiny::kDense, all), options, nullptr, nullptr)).report;
}

std::vector<std::string> causes(const Report& r) {
  std::vector<std::string> names;
  for (const Finding& f : r.findings) names.push_back(f.cause);
  return names;
}
using Names = std::vector<std::string>;

// Every op of every rule is inside its bound on the emulated TPU, and the remaining differences are
// noise.
class OptimizerKinds : public testing::TestWithParam<const char*> {};
TEST_P(OptimizerKinds, AreNoise) {
  const std::string kind = GetParam();
  const Report r = diagnosed({{"optimizer.kind", kind}, {"optimizer.lr", "0.002"}});
  EXPECT_EQ(r.verdict, VerdictClass::kNoise) << r.headline;
  const bool two = kind == "rmsprop" || kind == "adamax";
  EXPECT_EQ(causes(r), (two ? Names{"precision", "update_algebra"} : Names{"precision"}));
}
INSTANTIATE_TEST_SUITE_P(All, OptimizerKinds,
                         testing::Values("sgd", "momentum", "adam", "adagrad", "adadelta",
                                         "rmsprop", "adamax", "adamw", "adafactor", "lars", "lamb"),
                         [](const auto& info) { return std::string(info.param); });

TEST(OptimizerDiagnosis, AroundTheRule) {
  const Report r = diagnosed({{"optimizer.kind", "adam"},
                              {"optimizer.clip", "global_norm"},
                              {"optimizer.clip_at", "0.5"},
                              {"optimizer.l2", "0.001"},
                              {"optimizer.ema", "0.9"},
                              {"optimizer.ema_eval", "true"},
                              {"train.accumulate", "2"}});
  EXPECT_EQ(r.verdict, VerdictClass::kNoise) << r.headline;
}

// On one core without lower precision only the algebra differs; with the same algebra there is no
// difference at all.
TEST(OptimizerDiagnosis, AlgebraAlone) {
  const Overrides base = {
      {"optimizer.kind", "rmsprop"}, {"tpu.cores", "1"}, {"tpu.precision", "f32"}};
  const Report r = diagnosed(base);
  EXPECT_EQ(r.verdict, VerdictClass::kNoise) << r.headline;
  EXPECT_EQ(causes(r), Names{"update_algebra"});
  EXPECT_EQ(std::ranges::count(r.runs, std::string("S"), &RunSummary::name), 1);
  for (const std::string algebra : {"cpu", "xla"}) {
    Overrides same = base;
    same.emplace_back("optimizer.algebra", algebra);
    EXPECT_EQ(diagnosed(same).verdict, VerdictClass::kIdentical) << algebra;
  }
}

TEST(OptimizerPrograms, EachStackHasItsAlgebra) {
  const auto algebra = [](const Program& p) { return p.optimizer.algebra; };
  const auto of = [](const char* kind, const char* setting) {
    Overrides o = {{"optimizer.kind", kind}};
    if (*setting != 0) o.emplace_back("optimizer.algebra", setting);
    return tiny::experiment(tiny::kDense, o);
  };
  const Experiment automatic = of("rmsprop", "auto");
  EXPECT_TRUE(automatic.two_algebras());
  EXPECT_EQ(algebra(automatic.whole()), Algebra::kCpu);
  EXPECT_EQ(algebra(automatic.per_core()), Algebra::kCpu);
  EXPECT_EQ(algebra(automatic.per_core(Experiment::Stack::kTpu)), Algebra::kXla);
  EXPECT_EQ(algebra(automatic.sharded(automatic.sharding)), Algebra::kXla);
  const Experiment cpu = of("adamax", "cpu"), xla = of("adamax", "xla"), adam = of("adam", "");
  EXPECT_FALSE(cpu.two_algebras());
  EXPECT_FALSE(adam.two_algebras());
  EXPECT_EQ(algebra(cpu.sharded(cpu.sharding)), Algebra::kCpu);
  EXPECT_EQ(algebra(xla.whole()), Algebra::kXla);
  // The checkpoints of the two stacks are interchangeable.
  const Program a = automatic.whole(), b = automatic.sharded(automatic.sharding);
  ASSERT_EQ(a.state.size(), b.state.size());
  for (size_t i = 0; i < a.state.size(); ++i) EXPECT_EQ(a.state[i].name, b.state[i].name);
}

TEST(OptimizerDefaults, DependOnTheKind) {
  const auto spec = [](const Overrides& o) {
    return optimizer_of(tiny::scenario(tiny::kDense, o));
  };
  EXPECT_EQ(spec({{"optimizer.kind", "momentum"}}).momentum, 0.9);
  EXPECT_EQ(spec({{"optimizer.kind", "rmsprop"}}).momentum, 0);
  EXPECT_EQ(spec({{"optimizer.kind", "rmsprop"}, {"optimizer.momentum", "0.5"}}).momentum, 0.5);
  EXPECT_EQ(spec({{"optimizer.kind", "rmsprop"}}).epsilon, 1e-10);
  EXPECT_EQ(spec({{"optimizer.kind", "adadelta"}}).rho, 0.95);
  EXPECT_EQ(spec({{"optimizer.kind", "adam"}}).epsilon, 1e-8);
  EXPECT_EQ(spec({{"optimizer.kind", "adafactor"}}).beta1, 0);
  EXPECT_EQ(spec({{"optimizer.kind", "lars"}}).epsilon, 0);
  EXPECT_EQ(spec({{"optimizer.kind", "lars"}}).weight_decay, 1e-4);
  EXPECT_EQ(spec({{"optimizer.kind", "adamw"}}).weight_decay, 0.004);
  for (const char* kind : {"rmsprop", "lars", "adamw", "adafactor"}) {
    const Scenario s = tiny::scenario(tiny::kDense, {{"optimizer.kind", kind}});
    EXPECT_EQ(resolved_toml(tiny::must(parse_scenario(resolved_toml(s), "again.toml"))),
              resolved_toml(s));
  }
}

// With ema_eval the averaged weights are evaluated: the result equals that of a state that has them
// as its weights.
TEST(AveragedWeights, AreEvaluated) {
  const Overrides ema = {{"optimizer.ema", "0.75"}};
  const Experiment plain = tiny::experiment(tiny::kDense, ema);
  Overrides on = ema;
  on.emplace_back("optimizer.ema_eval", "true");
  const Experiment averaged = tiny::experiment(tiny::kDense, on);
  const Program p = plain.whole();
  RunOptions options;
  options.evaluate = false;
  const States states = tiny::must(train(plain, p, *tiny::backend("cpu"), options)).states;
  States moved = states;
  for (const StateVar& var : p.state) {
    if (var.role != StateRole::kParameter) continue;
    const auto at = [&](const std::string& name) -> Tensor& {
      return moved[0].vars[static_cast<size_t>(p.state_index(name))];
    };
    EXPECT_FALSE(at(var.name).same_bits(at(var.name + ".ema"))) << var.name;
    at(var.name) = at(var.name + ".ema");
  }
  Evaluator by_weights(plain, 1), by_average(averaged, 1);
  const double expected = tiny::must(by_weights.evaluate(p, moved, 20)).loss;
  EXPECT_EQ(tiny::must(by_average.evaluate(p, states, 20)).loss, expected);
  EXPECT_NE(tiny::must(by_weights.evaluate(p, states, 20)).loss, expected);
}

}  // namespace
}  // namespace twinrun
