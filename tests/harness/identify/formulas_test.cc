// Tests the catalogue of formulas: each change that an experiment could have is run by an engine
// that does not report it, and must be named from the engine's tensors.
#include "harness/identify/formulas.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "backends/core/wrapped.h"
#include "backends/variants/variant.h"
#include "harness/identify/identify.h"
#include "harness/identify/judge_steps.h"
#include "harness/run/run.h"
#include "tests/harness/subjects.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

// A conforming engine that runs a script of its own.
class OwnScript : public tiny::OwnScript {
 public:
  OwnScript(Experiment own, Sharding sharding)
      : tiny::OwnScript(std::move(own), sharding, make_variant_backend(variant(), {})) {}

 private:
  static Variant variant() {
    Capabilities declared;
    declared.contracts = true;
    declared.elementary_ulps = 4;
    declared.max_cores = 8;
    return variant_within(77, declared);
  }
};

Identification identify_script(const Experiment& e, Backend& subject,
                               const IdentifyOptions& how = {}) {
  const Program asked = e.sharding.cores > 1 ? e.sharded(e.sharding) : e.whole();
  tiny::KeptStarts keeper({0, 7});
  RunOptions options;
  options.observer = &keeper;
  options.evaluate = false;
  options.steps = 8;
  tiny::must(train(e, asked, subject, options));
  return tiny::must(identify_program(e, asked, subject, keeper.states, how));
}

std::string text_of_script(const Identification& m) {
  std::string out = "outcome " + std::to_string(static_cast<int>(m.outcome)) + ", ratio " +
                    std::to_string(m.ratio);
  for (const Explanation& x : m.explanations) {
    for (const auto& part : x.parts) out += "\n  " + part.cause + " " + std::to_string(x.ratio);
  }
  for (const TensorMismatch& t : m.outside)
    out += "\n  " + t.tensor + " at " + std::to_string(t.step) + ": " + std::to_string(t.ratio) +
           " " + t.pattern;
  return out;
}

bool is_named(const Identification& m, const std::string& setting) {
  return std::ranges::any_of(m.explanations, [&](const Explanation& x) {
    return x.parts.size() == 1 && x.parts[0].cause == setting;
  });
}

Experiment on_one_core(const char* layers, Overrides overrides) {
  overrides.emplace_back("tpu.cores", "1");
  return tiny::experiment(layers, overrides);
}

// Plants each change that the experiment could have. Each must be named, or be inside where the run
// cannot show it; at least `at_least` must be named.
void expect_all_named(const Experiment& e, size_t at_least) {
  size_t names = 0;
  for (const FormulaChange& change : formula_changes(e)) {
    const Result<Experiment> own = with_formula(e, change);
    if (!own) continue;  // this model cannot have it: padding may change shapes
    // Changes that need other state between steps have tests of their own.
    const Program its = own->whole(), asked = e.whole();
    const bool fits = std::ranges::equal(
        its.state, asked.state,
        [](const StateVar& x, const StateVar& y) { return x.name == y.name && x.type == y.type; });
    if (!fits) continue;
    OwnScript subject(*own, e.sharding);
    const Identification m = identify_script(e, subject, {.pairs = false});
    if (m.outcome == Identification::Outcome::kInside) continue;
    EXPECT_EQ(m.outcome, Identification::Outcome::kExplained)
        << change.setting << ": " << text_of_script(m);
    EXPECT_TRUE(is_named(m, change.setting)) << change.setting << ": " << text_of_script(m);
    names += is_named(m, change.setting) ? 1 : 0;
  }
  EXPECT_GE(names, at_least);
}

TEST(FormulasSlow, OfAdamAreNamed) {
  expect_all_named(on_one_core(tiny::kDense, {{"optimizer.kind", "adam"},
                                              {"optimizer.epsilon", "1e-5"},
                                              {"optimizer.weight_decay", "0.01"},
                                              {"optimizer.schedule", "cosine"},
                                              {"optimizer.decay_steps", "20"}}),
                   30);
}
TEST(FormulasSlow, OfMomentumAndClippingAreNamed) {
  expect_all_named(on_one_core(tiny::kDense, {{"optimizer.kind", "momentum"},
                                              {"optimizer.clip", "global_norm"},
                                              {"optimizer.clip_at", "0.5"},
                                              {"optimizer.l2", "0.01"}}),
                   25);
}
TEST(FormulasSlow, OfConvolutionsAndBatchNormAreNamed) {
  expect_all_named(on_one_core(tiny::kConvolutional, {{"loss.smoothing", "0.1"}}), 30);
}
TEST(FormulasSlow, OfDropoutAreNamed) { expect_all_named(on_one_core(tiny::kNormalized, {}), 30); }

TEST(Formulas, AConformingEngineIsInside) {
  const Experiment e = on_one_core(tiny::kConvolutional, {});
  OwnScript subject(e, e.sharding);
  EXPECT_EQ(identify_script(e, subject).outcome, Identification::Outcome::kInside);
}

// ---- private state: what the engine does not report

// Runs another program, keeps that program's state from step to step, and reports only the
// variables that the scenario's program has.
class Stateful : public WrappedBackend {
 public:
  Stateful(const Experiment& own, const Program& asked)
      : WrappedBackend(tiny::backend("cpu"), tiny::as_foreign), own_(own), asked_(asked) {}
  Result<std::unique_ptr<Engine>> prepare(const Program&) override {
    return wrap<Run>(own_.whole(), own_, asked_);
  }

 private:
  class Run : public WrappedEngine {
   public:
    Run(std::unique_ptr<Engine> inner, const Experiment& own, const Program& asked)
        : WrappedEngine(std::move(inner)), asked_(asked), states_(initial_states(own, program())) {}
    Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                TraceSink*, OpHooks*) override {
      const Program& own = inner_->program();
      TWINRUN_RETURN_IF_ERROR(inner_->step(step, states_, inputs, outputs));
      for (size_t i = 0; i < asked_.state.size(); ++i) {
        const int place = own.state_index(asked_.state[i].name);
        if (place >= 0) states[0].vars[i] = states_[0].vars[static_cast<size_t>(place)];
      }
      return Ok{};
    }

   private:
    const Program& asked_;
    States states_;
  };
  const Experiment& own_;
  const Program& asked_;
};

// Judges all steps of a run as a diagnosis does.
Identification identify_run(const Experiment& e, const Program& asked, Backend& subject) {
  tiny::KeptSteps keeper;
  RunOptions options;
  options.observer = &keeper;
  options.evaluate = false;
  options.steps = 8;
  tiny::must(train(e, asked, subject, options));
  StepsJudge judge(e, asked, subject, {});
  return tiny::must(judge.match(keeper.states, 8));
}

Identification identify_stateful(const Experiment& e, const Overrides& own) {
  Experiment other = e;
  for (const auto& [key, value] : own) {
    FormulaChange change;
    change.values = {{key, value}};
    other = tiny::must(with_formula(other, change));
  }
  const Program asked = e.whole();
  Stateful subject(other, asked);
  return identify_run(e, asked, subject);
}

// AMSGrad's maximum is not in the reported state, so it is replayed from the first step on.
TEST(Formulas, WhatAScriptKeepsToItselfIsReplayed) {
  const Experiment e = on_one_core(tiny::kDense, {{"optimizer.kind", "adam"}});
  const Identification m = identify_stateful(e, {{"optimizer.amsgrad", "true"}});
  EXPECT_TRUE(is_named(m, "optimizer.amsgrad = true")) << text_of_script(m);
}

TEST(Formulas, AVelocityThatTheScenarioDoesNotHaveIsReplayed) {
  const Experiment e = on_one_core(tiny::kDense, {{"optimizer.kind", "sgd"}});
  const Identification m = identify_stateful(e, {{"optimizer.kind", "momentum"}});
  EXPECT_TRUE(is_named(m, "optimizer.kind = \"momentum\"")) << text_of_script(m);
}

TEST(Formulas, AnotherStartOfASlotIsNamed) {
  const Experiment e = on_one_core(tiny::kDense, {{"optimizer.kind", "adagrad"}});
  const Identification m = identify_stateful(e, {{"optimizer.initial_accumulator", "0"}});
  EXPECT_TRUE(is_named(m, "optimizer.initial_accumulator = 0")) << text_of_script(m);
}

TEST(Formulas, AccumulationThatIsLeftOutIsNamed) {
  const Experiment e = on_one_core(tiny::kDense, {{"train.accumulate", "4"}});
  const Identification m = identify_stateful(e, {{"train.accumulate", "1"}});
  EXPECT_TRUE(is_named(m, "train.accumulate = 1")) << text_of_script(m);
}

// ---- numbers

Identification match_number(const Experiment& e, const std::string& key, const std::string& value) {
  FormulaChange change;
  change.values = {{key, value}};
  OwnScript subject(tiny::must(with_formula(e, change)), e.sharding);
  return identify_script(e, subject);
}

TEST(Formulas, ANumberOfNoListIsSolvedFor) {
  const Experiment dense =
      on_one_core(tiny::kDense, {{"optimizer.kind", "adam"}, {"optimizer.epsilon", "1e-5"}});
  EXPECT_TRUE(
      is_named(match_number(dense, "optimizer.epsilon", "0.00035"), "optimizer.epsilon = 0.00035"));
  EXPECT_TRUE(is_named(match_number(dense, "optimizer.beta1", "0.87"), "optimizer.beta1 = 0.87"));
  EXPECT_TRUE(is_named(match_number(dense, "loss.smoothing", "0.07"), "loss.smoothing = 0.07"));
  const Experiment norm = on_one_core(tiny::kNormalized, {});
  EXPECT_TRUE(is_named(match_number(norm, "batch_norm.epsilon", "0.0007"),
                       "epsilon = 0.0007 in layers of kind batch_norm"));
}

// A constant that an engine's compiler got wrong can be any number; it is no number that a person
// would set, so no setting explains it.
TEST(Formulas, ANumberThatNobodySetsIsNotExplained) {
  const Experiment norm = on_one_core(tiny::kNormalized, {});
  const Identification m = match_number(norm, "batch_norm.epsilon", "0.001037");
  EXPECT_EQ(m.outcome, Identification::Outcome::kUnexplained) << text_of_script(m);
  EXPECT_EQ(plain_number(0.0101), std::nullopt);
  EXPECT_EQ(plain_number(0.997001), 1 - 0.003);
  EXPECT_EQ(plain_number(0.00349997), 0.0035);
}

TEST(Formulas, WhatGradientsAreClippedAtIsRead) {
  const Experiment e = on_one_core(tiny::kDense, {});
  for (const auto& [kind, at] : {std::pair{"global_norm", "0.37"}, {"value", "0.0123"}}) {
    FormulaChange change;
    change.values = {{"optimizer.clip", kind}, {"optimizer.clip_at", at}};
    OwnScript subject(tiny::must(with_formula(e, change)), e.sharding);
    const Identification m = identify_script(e, subject);
    const std::string setting =
        std::string("optimizer.clip = \"") + kind + "\", optimizer.clip_at = " + at;
    EXPECT_TRUE(is_named(m, setting)) << setting << ": " << text_of_script(m);
  }
}

// ---- layers

// A model of these kinds of layers, with the keys that a kind requires.
Experiment of_layers(std::initializer_list<const char*> kinds) {
  std::string text;
  for (const std::string kind : kinds) {
    text += "[[model.layers]]\nkind = \"" + kind + "\"\n";
    if (kind == "conv2d") text += "filters = 3\nkernel = 3\n";
    if (kind == "dense") text += "units = 10\n";
  }
  return on_one_core(text.c_str(), {});
}

// Pixels are black and biases start at zero, so relu's input is exactly zero in places.
TEST(Formulas, TheGradientOfReluAtZeroIsNamed) {
  const Experiment e = of_layers({"conv2d", "relu", "flatten", "dense"});
  for (const char* at_zero : {"half", "full"}) {
    const std::string value = std::string("\"") + at_zero + "\"";
    EXPECT_TRUE(is_named(match_number(e, "relu.at_zero", value),
                         "at_zero = " + value + " in layers of kind relu"));
  }
}

// ---- parameters that do not learn

TEST(Formulas, LayersThatDoNotLearnAreNamedTogether) {
  const Experiment e = on_one_core(tiny::kDense, {{"optimizer.kind", "momentum"}});
  EXPECT_TRUE(is_named(match_number(e, "optimizer.frozen", "\"dense1|dense2/bias\""),
                       "optimizer.frozen = [\"dense1\", \"dense2/bias\"]"));
  EXPECT_TRUE(is_named(match_number(e, "optimizer.stopped", "\"dense1\""),
                       "optimizer.stopped = [\"dense1\"]"));
  EXPECT_TRUE(is_named(match_number(e, "model.layers.dense2.unused", "\"bias\""),
                       "model.layers.dense2.unused = [\"bias\"]"));
}

TEST(Formulas, AKernelThatDoesNotLearnBesideItsBiasIsNoFormula) {
  const Experiment e = on_one_core(tiny::kDense, {{"optimizer.kind", "momentum"}});
  for (const char* key : {"optimizer.frozen", "optimizer.stopped"}) {
    const Identification m = match_number(e, key, "\"dense1/kernel\"");
    EXPECT_EQ(m.outcome, Identification::Outcome::kUnexplained) << text_of_script(m);
  }
}

// A fault of a single tensor must not be explained by a formula.
TEST(Formulas, AFaultOfOneOpIsNotExplainedAway) {
  const Experiment e = on_one_core(tiny::kConvolutional, {{"optimizer.kind", "momentum"}});
  for (const char* fault : {"scale@dense1/kernel.grad", "zero_rows@dense1/kernel.grad"}) {
    const FaultSpec parsed = tiny::must(parse_fault(fault));
    WrappedBackend subject(with_faults(tiny::backend("cpu"), {parsed}, 3, nullptr),
                           tiny::as_foreign);
    const Identification m = identify_script(e, subject);
    EXPECT_EQ(m.outcome, Identification::Outcome::kUnexplained)
        << fault << ": " << text_of_script(m);
  }
}

TEST(Formulas, TwoAtOnceAreBothNamed) {
  const Experiment e = on_one_core(tiny::kConvolutional,
                                   {{"optimizer.kind", "adam"}, {"optimizer.epsilon", "1e-4"}});
  Experiment own = e;
  std::vector<std::string> settings;
  for (const FormulaChange& change : formula_changes(e)) {
    if (change.setting != "optimizer.epsilon_form = \"torch\"" &&
        change.setting != "epsilon = 1e-5 in layers of kind batch_norm")
      continue;
    own = tiny::must(with_formula(own, change));
    settings.push_back(change.setting);
  }
  ASSERT_EQ(settings.size(), 2u);
  OwnScript subject(own, e.sharding);
  const Identification m = identify_script(e, subject);
  ASSERT_EQ(m.outcome, Identification::Outcome::kExplained) << text_of_script(m);
  EXPECT_EQ(m.explanations.front().parts.size(), 2u) << text_of_script(m);
}

}  // namespace
}  // namespace twinrun
