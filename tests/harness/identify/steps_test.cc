// Tests that at level C every step of a run is examined: engines that are wrong in one step of
// many, and engines that are right in all.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "backends/core/wrapped.h"
#include "backends/variants/variant.h"
#include "harness/diagnose/pipeline.h"
#include "harness/envelope/screen_steps.h"
#include "harness/identify/judge_steps.h"
#include "harness/run/one_step.h"
#include "program/base/philox.h"
#include "tests/harness/subjects.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

using tiny::must;

// Something that happens to the state before a step, or to its results. `Foreign` is an engine that
// shows no ops and to which it happens.
struct Mishap {
  std::function<void(int64_t step, States& states)> before;
  std::function<void(int64_t step, const States& before, States& after, StepOutputs& outputs)>
      after;
};

class Foreign : public WrappedBackend {
 public:
  Foreign(std::unique_ptr<Backend> inner, Mishap mishap, bool deterministic)
      : WrappedBackend(std::move(inner),
                       [deterministic](Capabilities& c) {
                         tiny::as_foreign(c);
                         c.deterministic = deterministic;
                         c.elementary_ulps = 4;
                         c.contracts = true;
                       }),
        mishap_(std::move(mishap)) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return wrap<Run>(program, mishap_);
  }

 private:
  class Run : public WrappedEngine {
   public:
    Run(std::unique_ptr<Engine> inner, const Mishap& mishap)
        : WrappedEngine(std::move(inner)), mishap_(mishap) {}
    Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                TraceSink*, OpHooks* hooks) override {
      const States before = states;
      const bool there = program().sharding.cores > 1;  // run E1 is on one core
      if (there && mishap_.before) mishap_.before(step, states);
      TWINRUN_RETURN_IF_ERROR(inner_->step(step, states, inputs, outputs, nullptr, hooks));
      if (there && mishap_.after) mishap_.after(step, before, states, outputs);
      return Ok{};
    }

   private:
    Mishap mishap_;
  };
  Mishap mishap_;
};

struct Setting {
  int steps = 60, cores = 2;
  DotPrecision precision = DotPrecision::kF32;
  const char* optimizer = "sgd";
  bool deterministic = false;
  uint64_t variant = 7;  // of a conforming engine with its own order of summation
  const char* layers = tiny::kDense;
  int seed = 3;
  const char* named = nullptr;  // a scenario of the library, instead of `layers`
};

Scenario scenario_of(const Setting& s) {
  if (s.named != nullptr)
    return must(load_scenario(s.named, {{"tpu.cores", std::to_string(s.cores)},
                                        {"train.steps", std::to_string(s.steps)},
                                        {"seed", std::to_string(s.seed)}}));
  return tiny::scenario(s.layers, {{"tpu.cores", std::to_string(s.cores)},
                                   {"train.steps", std::to_string(s.steps)},
                                   {"optimizer.kind", s.optimizer},
                                   {"seed", std::to_string(s.seed)}});
}

Report diagnosed(const Setting& s, const Mishap& mishap) {
  const Folder folder;
  DiagnoseOptions o;
  o.subject = "foreign";
  o.directory = folder / "out";
  o.quick = true;
  o.make_subject = [&](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(
        new Foreign(make_variant_backend(draw_variant(s.variant, s.precision), options), mishap,
                    s.deterministic));
  };
  return must(diagnose(scenario_of(s), o, nullptr, nullptr)).report;
}

std::string text_of(const Report& r) {
  std::string out = std::string(to_string(r.verdict)) + ": " + r.headline;
  for (const Finding& f : r.findings) out += "\n  " + f.cause + ": " + f.sentence;
  for (const std::string& note : r.notes) out += "\n  note: " + note;
  return out;
}

void expect_found(const Report& r, int64_t step, const std::string& tensor) {
  EXPECT_EQ(r.verdict, VerdictClass::kEngineBug) << text_of(r);
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(r.findings[0].step, step) << text_of(r);
  EXPECT_TRUE(tensor.empty() || r.findings[0].op == tensor) << text_of(r);
}

void expect_clean(const Report& r, int64_t steps) {
  EXPECT_NE(r.verdict, VerdictClass::kEngineBug) << text_of(r);
  for (const Finding& f : r.findings) EXPECT_NE(f.cause, "hidden_state") << text_of(r);
  EXPECT_EQ(r.step_coverage.screened, steps);
  EXPECT_EQ(r.step_coverage.judged, std::min<int64_t>(steps, 24));
}

Tensor& var(States& states, const Program& program, const std::string& name, size_t replica) {
  Tensor& t = states[replica].vars[static_cast<size_t>(program.state_index(name))];
  t = t.clone();
  return t;
}

size_t output(const Program& program, const std::string& name) {
  const auto found = std::ranges::find(program.outputs, name, &Output::name);
  return static_cast<size_t>(found - program.outputs.begin());
}

// The step that the i-th fault strikes: drawn at random, and never the first.
int64_t drawn_step(int steps, uint32_t i) {
  return 1 + bounded(draw({17, kStreamData}, i, 0, 0), static_cast<uint32_t>(steps - 1));
}

Program asked_of(const Setting& s) {
  const Experiment e = must(make_experiment(scenario_of(s)));
  return s.cores > 1 ? e.sharded(e.sharding) : e.whole(Experiment::Stack::kTpu);
}

// ---- faults of one step

// Turns the sign of a gradient, both as it is applied and as it is reported.
Mishap sign_turned(const Program& p, int64_t at) {
  return {{}, [&p, at](int64_t step, const States& before, States& after, StepOutputs& outputs) {
            if (step != at) return;
            for (size_t r = 0; r < after.size(); ++r) {
              Tensor& g = outputs[r][output(p, "dense1/kernel.grad")];
              g = g.clone();
              for (float& x : g.as<float>()) x = -x;
              Tensor& w = var(after, p, "dense1/kernel", r);
              const auto index = static_cast<size_t>(p.state_index("dense1/kernel"));
              const Tensor& old = before[r].vars[index];
              for (size_t i = 0; i < w.as<float>().size(); ++i)
                w.as<float>()[i] = 2 * old.as<float>()[i] - w.as<float>()[i];
            }
          }};
}

// Flips a bit of one weight on all cores between two steps. The state that the engine reports
// before the second step does not have the flip.
Mishap bit_flipped(const Program& p, int64_t at, int bit) {
  return {[&p, at, bit](int64_t step, States& states) {
            if (step != at) return;
            for (size_t r = 0; r < states.size(); ++r) {
              float& w = var(states, p, "dense1/kernel", r).as<float>()[123];
              uint32_t bits = 0;
              std::memcpy(&bits, &w, sizeof bits);
              bits ^= 1u << bit;
              std::memcpy(&w, &bits, sizeof w);
            }
          },
          {}};
}

// One core loses its update of one variable, so its weights differ from then on.
Mishap update_lost(const Program& p, int64_t at, const std::string& name, size_t core) {
  return {{},
          [&p, at, name, core](int64_t step, const States& before, States& after, StepOutputs&) {
            if (step != at) return;
            const auto index = static_cast<size_t>(p.state_index(name));
            after[core].vars[index] = before[core].vars[index];
          }};
}

// Clamps the weights of one variable to a range, for one step.
Mishap saturated(const Program& p, int64_t at) {
  return {{}, [&p, at](int64_t step, const States&, States& after, StepOutputs&) {
            if (step != at) return;
            for (size_t r = 0; r < after.size(); ++r) {
              for (float& w : var(after, p, "dense2/kernel", r).as<float>())
                w = std::clamp(w, -0.25f, 0.25f);
            }
          }};
}

class StepsSlow : public testing::TestWithParam<std::tuple<int, DotPrecision>> {
 protected:
  Setting setting() const {
    Setting s;
    std::tie(s.steps, s.precision) = GetParam();
    return s;
  }
};

TEST_P(StepsSlow, AFaultOfOneStepIsFoundWithItsStep) {
  const Setting s = setting();
  const Program p = asked_of(s);
  uint32_t draws = 0;
  for (int i = 0; i < 2; ++i) {
    const int64_t a = drawn_step(s.steps, draws++), b = drawn_step(s.steps, draws++),
                  c = drawn_step(s.steps, draws++), d = drawn_step(s.steps, draws++);
    expect_found(diagnosed(s, sign_turned(p, a)), a, "dense1/kernel.grad");
    const Report lost = diagnosed(s, update_lost(p, b, "dense2/kernel", 1));
    expect_found(lost, b, "dense2/kernel");
    EXPECT_EQ(lost.findings[0].core, 1) << text_of(lost);
    expect_found(diagnosed(s, saturated(p, c)), c, "dense2/kernel");
    expect_found(diagnosed(s, bit_flipped(p, d, 29)), d, "");
  }
}
INSTANTIATE_TEST_SUITE_P(Runs, StepsSlow,
                         testing::Combine(testing::Values(60, 200),
                                          testing::Values(DotPrecision::kF32,
                                                          DotPrecision::kBf16)));

TEST(Steps, AFaultOfOneStepInSixtyIsFound) {
  Setting s;
  const Program p = asked_of(s);
  expect_found(diagnosed(s, sign_turned(p, 11)), 11, "dense1/kernel.grad");
  const Report lost = diagnosed(s, update_lost(p, 9, "dense2/bias", 1));
  expect_found(lost, 9, "dense2/bias");
  EXPECT_EQ(lost.findings[0].core, 1) << text_of(lost);
}

// A flipped bit of the exponent (29) or the highest bit of the fraction (22), between two steps.
// With rmsprop, nothing depends on the velocity that is in the state.
void expect_changed_between_steps(const char* optimizer, int bit) {
  SCOPED_TRACE(optimizer + std::string(" ") + std::to_string(bit));
  Setting s;
  s.optimizer = optimizer;
  const Program p = asked_of(s);
  const Report r = diagnosed(s, bit_flipped(p, 6, bit));
  expect_found(r, 6, "dense1/kernel");
  EXPECT_EQ(r.findings[0].cause, "other_start") << text_of(r);
  EXPECT_NE(r.findings[0].sentence.find(
                "does not follow from the state that the engine reported after step 5"),
            std::string::npos)
      << text_of(r);
  EXPECT_NE(r.findings[0].elements.find("1 of "), std::string::npos) << r.findings[0].elements;
}
TEST(Steps, AStateThatChangesBetweenTheStepsIsTold) {
  expect_changed_between_steps("momentum", 22);
}
TEST(StepVariantsSlow, AStateThatChangesBetweenTheStepsIsTold) {
  expect_changed_between_steps("momentum", 29);
  expect_changed_between_steps("rmsprop", 29);
}

// The engine promises equal bits: the first step after which the cores differ is reported with the
// core that differs from the others, even if it is core 0.
TEST(Steps, AnOddCoreIsNamed) {
  Setting s;
  s.cores = 4;
  s.deterministic = true;
  const Program p = asked_of(s);
  for (const size_t core : {size_t{0}, size_t{2}}) {
    const Report r = diagnosed(s, update_lost(p, 31, "dense1/kernel", core));
    EXPECT_EQ(r.verdict, VerdictClass::kEngineBug) << text_of(r);
    EXPECT_EQ(r.findings[0].step, 31) << text_of(r);
    EXPECT_EQ(r.findings[0].core, static_cast<int>(core)) << text_of(r);
  }
}

// One core applies 1.0005 times its update. Rounding operands to bfloat16 may change a gradient by
// as much, but cannot make two cores apply one gradient differently.
TEST(Steps, CoresThatPartWithinTheEnvelope) {
  Setting s;
  s.precision = DotPrecision::kBf16;
  const Program p = asked_of(s);
  const Mishap parts{{}, [&p](int64_t step, const States& before, States& after, StepOutputs&) {
                       if (step != 33) return;
                       const auto at = static_cast<size_t>(p.state_index("dense1/kernel"));
                       Tensor& w = var(after, p, "dense1/kernel", 1);
                       for (size_t i = 0; i < w.as<float>().size(); ++i) {
                         const float old = before[1].vars[at].as<float>()[i];
                         w.as<float>()[i] = old + (w.as<float>()[i] - old) * 1.0005f;
                       }
                     }};
  const Report r = diagnosed(s, parts);
  expect_found(r, 33, "dense1/kernel");
  EXPECT_EQ(r.findings[0].core, 1) << text_of(r);
}

// NaN has no distance from other numbers, so it is a fault even if the engine does not promise to
// repeat its bits.
void expect_nan_is_found(bool deterministic) {
  Setting s;
  s.deterministic = deterministic;
  const Program p = asked_of(s);
  const Mishap nan{[&p](int64_t step, States& states) {
                     if (step < 30) return;
                     for (size_t r = 0; r < states.size(); ++r)
                       var(states, p, "dense1/kernel", r).as<float>()[5] = NAN;
                   },
                   {}};
  const Report r = diagnosed(s, nan);
  expect_found(r, 30, "");
  EXPECT_NE(text_of(r).find("ends in NaN at step 30; the references do not"), std::string::npos)
      << text_of(r);
}
TEST(Steps, NaNInTheMiddleOfARunIsFoundWithItsStep) { expect_nan_is_found(false); }
TEST(StepVariantsSlow, NaNInTheMiddleOfADeterministicRunIsFoundWithItsStep) {
  expect_nan_is_found(true);
}

// The engine counts its steps itself. When it is resumed, it counts from zero again.
TEST(Steps, WhatTheStateDoesNotHoldIsTold) {
  for (const bool deterministic : {true, false}) {
    Setting s;
    s.deterministic = deterministic;
    const Program p = asked_of(s);
    const Folder folder;
    // Computes the step as requested while its own count agrees with the step; otherwise multiplies
    // one update by 1.25.
    class Counting : public WrappedBackend {
     public:
      Counting(std::unique_ptr<Backend> inner, const Program& p)
          : WrappedBackend(std::move(inner)), p_(p) {}
      Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
        return wrap<Counted>(program, p_);
      }

     private:
      class Counted : public WrappedEngine {
       public:
        Counted(std::unique_ptr<Engine> inner, const Program& p)
            : WrappedEngine(std::move(inner)), p_(p) {}
        Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                    TraceSink* sink, OpHooks* hooks) override {
          const States before = states;
          TWINRUN_RETURN_IF_ERROR(inner_->step(step, states, inputs, outputs, sink, hooks));
          const bool late = ++count_ != step + 1;
          const int at = p_.state_index("dense1/kernel");
          if (!late || at < 0 || program().sharding.cores == 1) return Ok{};
          for (size_t r = 0; r < states.size(); ++r) {
            Tensor& w = var(states, p_, "dense1/kernel", r);
            const Tensor& old = before[r].vars[static_cast<size_t>(at)];
            for (size_t i = 0; i < w.as<float>().size(); ++i)
              w.as<float>()[i] =
                  old.as<float>()[i] + (w.as<float>()[i] - old.as<float>()[i]) * 1.25f;
          }
          return Ok{};
        }

       private:
        int64_t count_ = 0;
        const Program& p_;
      };
      const Program& p_;
    };
    DiagnoseOptions o;
    o.subject = "counting";
    o.directory = folder / "out";
    o.quick = true;
    o.make_subject = [&](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
      return std::unique_ptr<Backend>(new Counting(
          std::make_unique<Foreign>(make_variant_backend(draw_variant(7, s.precision), options),
                                    Mishap{}, deterministic),
          p));
    };
    const Report r = must(diagnose(scenario_of(s), o, nullptr, nullptr)).report;
    EXPECT_EQ(r.verdict, VerdictClass::kProgram) << text_of(r);
    EXPECT_EQ(r.verdict_row, "hidden_state") << text_of(r);
    const auto hidden = std::ranges::find(r.findings, "hidden_state", &Finding::cause);
    ASSERT_NE(hidden, r.findings.end()) << text_of(r);
    EXPECT_EQ(hidden->op, "dense1/kernel");
    EXPECT_GT(hidden->step.value_or(0), 0);
    EXPECT_NEAR(hidden->number, 0.25, 0.01);
  }
}

// ---- what one core shows

// A script with eight times the learning rate: on eight cores it looks like a rate times the cores.
// One core alone shows that it is not.
TEST(Steps, ARateThatOneCoreShowsIsOfTheProgram) {
  class Rate : public WrappedBackend {
   public:
    Rate(std::unique_ptr<Backend> inner, bool on_one_core)
        : WrappedBackend(std::move(inner), tiny::as_foreign), on_one_core_(on_one_core) {}
    Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
      return wrap<Run>(program, program.sharding.cores > 1 || on_one_core_);
    }

   private:
    class Run : public WrappedEngine {
     public:
      Run(std::unique_ptr<Engine> inner, bool changed)
          : WrappedEngine(std::move(inner)), changed_(changed) {}
      Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                  TraceSink*, OpHooks* hooks) override {
        StepInputs fed = inputs;
        for (size_t i = 0; i < program().inputs.size() && changed_; ++i) {
          if (program().inputs[i].name != "learning_rate") continue;
          for (auto& core : fed) core[i] = Tensor::scalar(8 * core[i].as<float>()[0]);
        }
        return inner_->step(step, states, fed, outputs, nullptr, hooks);
      }

     private:
      bool changed_;
    };
    bool on_one_core_;
  };
  Setting s;
  s.cores = 8;
  s.steps = 20;
  for (const bool on_one_core : {true, false}) {
    const Folder folder;
    DiagnoseOptions o;
    o.subject = "script";
    o.directory = folder / "out";
    o.quick = true;
    o.make_subject = [&](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
      return std::unique_ptr<Backend>(
          new Rate(make_variant_backend(draw_variant(7, s.precision), options), on_one_core));
    };
    const Report r = must(diagnose(scenario_of(s), o, nullptr, nullptr)).report;
    EXPECT_EQ(r.verdict, on_one_core ? VerdictClass::kProgram : VerdictClass::kSharding)
        << text_of(r);
    ASSERT_FALSE(r.findings.empty());
    EXPECT_EQ(r.findings[0].cause, on_one_core ? "optimizer.lr" : "rate_times_cores") << text_of(r);
    EXPECT_EQ(r.headline.find("One core alone") != std::string::npos, on_one_core) << r.headline;
  }
}

// ---- conforming engines

TEST(Steps, AConformingRunOfTwoHundredStepsIsClean) {
  Setting s;
  s.steps = 200;
  expect_clean(diagnosed(s, {}), 200);
  s.precision = DotPrecision::kBf16;
  expect_clean(diagnosed(s, {}), 200);
}

TEST(StepsSlowClean, ConformingRunsOfTwoHundredStepsAreClean) {
  int64_t aside = 0;
  for (const DotPrecision precision : {DotPrecision::kF32, DotPrecision::kBf16}) {
    for (const char* layers : {tiny::kDense, tiny::kNormalized, tiny::kConvolutional}) {
      for (const char* optimizer : {"sgd", "adam"}) {
        for (uint64_t variant = 20; variant < 23; ++variant) {
          Setting s;
          s.steps = 200;
          s.precision = precision;
          s.layers = layers;
          s.optimizer = optimizer;
          s.variant = variant;
          s.seed = static_cast<int>(variant);
          const Report r = diagnosed(s, {});
          SCOPED_TRACE(std::string(optimizer) + " " + std::to_string(variant) + layers);
          expect_clean(r, 200);
          aside += r.step_coverage.set_aside;
        }
      }
    }
  }
  RecordProperty("set_aside", static_cast<int>(aside));
}

// A step has thousands of relus and maxima. In hundreds of steps some of them lie within the
// rounding of binary32, and a single engine may decide them the other way.
TEST(StepsSlowClean, DecisionsThatFallTheOtherWayAreNoFault) {
  int64_t aside = 0;
  for (uint64_t variant = 40; variant < 52; ++variant) {
    Setting s;
    s.steps = 200;
    s.named = "drill_cnn";
    s.variant = variant;
    s.seed = static_cast<int>(variant);
    const Report r = diagnosed(s, {});
    SCOPED_TRACE(variant);
    expect_clean(r, 200);
    aside += r.step_coverage.set_aside;
  }
  RecordProperty("set_aside", static_cast<int>(aside));
}

// For some samples the input of one unit is above zero by 2^-20.5 of its terms. That is more than
// the ensemble's weights are moved and less than the deciders' are, so an engine that decides the
// other way in one step is not accused.
TEST(Steps, ADecisionWithinTheRoundingIsSetAside) {
  const Experiment e =
      tiny::experiment(tiny::kDense, {{"tpu.cores", "1"}, {"tpu.precision", "f32"}});
  const Program p = e.whole(Experiment::Stack::kTpu);
  const auto kernel = static_cast<size_t>(p.state_index("dense1/kernel"));
  States states = initial_states(e, p);
  StepFeed feed(e, p);
  const StepInputs inputs = must(feed.inputs(0));
  const auto images = std::ranges::find(p.inputs, "images", &Input::name) - p.inputs.begin();
  const auto pixels = inputs[0][static_cast<size_t>(images)].as<float>();
  const size_t size = states[0].vars[kernel].as<float>().size() / 12;
  const size_t pixel =
      static_cast<size_t>(std::ranges::max_element(pixels) - pixels.begin()) % size;
  const float most = *std::ranges::max_element(pixels);
  Tensor& w = var(states, p, "dense1/kernel", 0);
  for (size_t i = 0; i < size; ++i) w.as<float>()[12 * i] = 0;
  w.as<float>()[12 * pixel] = -0.25f;
  var(states, p, "dense1/bias", 0).as<float>()[0] = 0.25f * most * (1 + 0x1.6ap-21f);

  Foreign subject(make_variant_backend(draw_variant(7, DotPrecision::kF32), {}), {}, true);
  const auto engine = must(subject.prepare(p));
  std::vector<ProbedState> kept;
  for (int64_t step = 0; step < 8; ++step) {
    const StepResult r = must(one_step(e, *engine, step, states));
    kept.push_back({step, states, r.after, r.outputs});
    states = r.after;
  }
  ProbedState& first = kept.front();
  States other = first.states;
  const float start = -0.25f * (1 + 0x1p-19f);
  var(other, p, "dense1/kernel", 0).as<float>()[12 * pixel] = start;
  const StepResult r = must(one_step(e, *engine, 0, other));
  first.outputs = r.outputs;
  first.after = r.after;
  float& after = var(first.after, p, "dense1/kernel", 0).as<float>()[12 * pixel];
  after = -0.25f + (after - start);
  ASSERT_FALSE(first.after[0].vars[kernel].same_bits(kept[1].states[0].vars[kernel]));

  IdentifyOptions o;
  o.explain = false;
  EXPECT_EQ(must(identify_program(e, p, subject, kept, o)).outcome,
            Identification::Outcome::kUnexplained)
      << "the ensemble alone accuses it";
  StepsJudge judge(e, p, subject, {});
  const Identification m = must(judge.match(kept, 8));
  EXPECT_EQ(m.outcome, Identification::Outcome::kInside);
  EXPECT_EQ(judge.set_aside(), 1);
  EXPECT_EQ(kept.size(), 7u);
}

TEST(Steps, TheSampleIsOfTheWholeRun) {
  EXPECT_EQ(sampled_steps(1, 6, 3), (std::vector<int64_t>{0}));
  EXPECT_EQ(sampled_steps(2, 6, 3), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(sampled_steps(4, 6, 3), (std::vector<int64_t>{0, 1, 2, 3}));
  const auto some = sampled_steps(1000, 6, 3);
  ASSERT_EQ(some.size(), 8u);
  EXPECT_TRUE(std::ranges::is_sorted(some));
  EXPECT_EQ(some, sampled_steps(1000, 6, 3));
  EXPECT_NE(some, sampled_steps(1000, 6, 4));
}

// Parts of the scenario that never took effect are reported, so that they are not taken as judged.
TEST(Steps, WhatWasNeverExercisedIsTold) {
  const auto report = [](const char* clip_at) {
    const Folder folder;
    DiagnoseOptions o;
    o.subject = "foreign";
    o.directory = folder / "out";
    o.quick = true;
    o.make_subject = [](const BackendOptions& options) -> Result<std::unique_ptr<Backend>> {
      return std::unique_ptr<Backend>(new Foreign(
          make_variant_backend(draw_variant(7, DotPrecision::kF32), options), {}, false));
    };
    return must(diagnose(tiny::scenario(tiny::kDense, {{"tpu.cores", "2"},
                                                       {"optimizer.clip", "global_norm"},
                                                       {"optimizer.clip_at", clip_at}}),
                         o, nullptr, nullptr))
        .report;
  };
  const Report never = report("1000");
  ASSERT_EQ(never.step_coverage.not_exercised.size(), 1u) << text_of(never);
  EXPECT_TRUE(never.step_coverage.not_exercised[0].starts_with("clipping")) << text_of(never);
  EXPECT_TRUE(report("0.01").step_coverage.not_exercised.empty());
}

}  // namespace
}  // namespace twinrun
