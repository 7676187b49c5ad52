// Tests engines of mixed precision: which parts of a step can be held to binary32, and which steps
// a loss scaler may skip.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "backends/core/wrapped.h"
#include "backends/variants/variant.h"
#include "harness/diagnose/pipeline.h"
#include "harness/envelope/members.h"
#include "harness/identify/judge_steps.h"
#include "harness/run/one_step.h"
#include "tests/harness/subjects.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

using tiny::must;
using After =
    std::function<void(int64_t step, const States& before, States& after, StepOutputs& outputs)>;

// A foreign engine that rounds to nearest as `computes` specifies, and may run a program of its
// own.
class MixedEngine : public WrappedBackend {
 public:
  MixedEngine(Precision computes, std::optional<Precision> declares, const Program& program,
              After after = {}, std::optional<Experiment> own = std::nullopt)
      : WrappedBackend(member(computes, program), tiny::as_declaring(declares)),
        after_(std::move(after)),
        own_(std::move(own)) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return wrap<Run>(own_ ? own_->whole() : program, after_);
  }

 private:
  static std::unique_ptr<Backend> member(Precision computes, const Program& program) {
    constexpr uint64_t kNumber = 9002;  // a number that no matching uses for a member
    const Capabilities declared = draw_variant(kNumber, DotPrecision::kF32).declared;
    const std::vector<PrecisionClass> classes = classes_within(computes, declared, program);
    PrecisionClass c = *std::ranges::find(classes, computes, &PrecisionClass::precision);
    if (c.how == PrecisionClass::How::kDrawn) c.how = PrecisionClass::How::kNearest;
    return member_of(c, kNumber, declared, {});
  }
  class Run : public WrappedEngine {
   public:
    Run(std::unique_ptr<Engine> inner, const After& after)
        : WrappedEngine(std::move(inner)), after_(after) {}
    Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                TraceSink*, OpHooks* hooks) override {
      const States before = states;
      TWINRUN_RETURN_IF_ERROR(inner_->step(step, states, inputs, outputs, nullptr, hooks));
      if (after_) after_(step, before, states, outputs);
      return Ok{};
    }

   private:
    const After& after_;
  };
  After after_;
  std::optional<Experiment> own_;
};

Experiment one_core(const char* layers, Overrides overrides) {
  overrides.emplace_back("tpu.cores", "1");
  return tiny::experiment(layers, overrides);
}

Identification identified_mixed(const Experiment& e, Backend& subject) {
  const Program p = e.whole();
  const auto engine = must(subject.prepare(p));
  std::vector<ProbedState> kept;
  States states = initial_states(e, p);
  for (int64_t step = 0; step < 4; ++step) {
    const StepResult r = must(one_step(e, *engine, step, states));
    kept.push_back({step, states, r.after, r.outputs});
    states = r.after;
  }
  StepsJudge judge(e, p, subject, {});
  return must(judge.match(kept, 4));
}

std::string reported_text(const Identification& m) {
  std::string out = "outcome " + std::to_string(static_cast<int>(m.outcome)) + " as " +
                    m.computes_as + ", " + m.computes + ", ratio " + std::to_string(m.ratio);
  for (const Explanation& x : m.explanations) {
    for (const auto& part : x.parts) out += "\n  " + part.cause + " " + std::to_string(x.ratio);
  }
  for (const TensorMismatch& t : m.outside)
    out += "\n  " + t.tensor + " at " + std::to_string(t.step) + ": " + std::to_string(t.ratio) +
           " " + t.pattern;
  return out;
}

// Adam divides a gradient by its own size, even a gradient that is nothing but rounding. Given the
// gradient that the engine shows, its update is nevertheless exact.
TEST(MixedPrecision, AConformingUpdateIsInside) {
  const Experiment e = one_core(tiny::kConvolutional, {{"optimizer.kind", "adam"}});
  for (const Precision precision : {Precision::kAutocast, Precision::kFloat16}) {
    MixedEngine subject(precision, precision, e.whole());
    const Identification m = identified_mixed(e, subject);
    EXPECT_EQ(m.outcome, Identification::Outcome::kInside) << reported_text(m);
  }
}

TEST(MixedPrecisionSlow, AWrongConstantOfTheOptimizerIsNamed) {
  const Experiment e =
      one_core(tiny::kDense, {{"optimizer.kind", "adam"}, {"optimizer.lr", "0.002"}});
  const Experiment own = one_core(
      tiny::kDense,
      {{"optimizer.kind", "adam"}, {"optimizer.lr", "0.002"}, {"optimizer.epsilon", "1e-5"}});
  for (const auto declares : {std::optional(Precision::kAutocast), std::optional<Precision>()}) {
    MixedEngine subject(Precision::kAutocast, declares, e.whole(), {}, own);
    const Identification m = identified_mixed(e, subject);
    ASSERT_EQ(m.outcome, Identification::Outcome::kExplained) << reported_text(m);
    EXPECT_TRUE(m.explanations[0].parts[0].cause.starts_with("optimizer.epsilon"))
        << reported_text(m);
  }
}

// One update is wrong in one step, although its gradient is right.
TEST(MixedPrecision, AFaultOfTheUpdateIsFound) {
  const Experiment e = one_core(tiny::kDense, {{"optimizer.kind", "momentum"}});
  const Program p = e.whole();
  const auto kernel = static_cast<size_t>(p.state_index("dense1/kernel"));
  MixedEngine subject(Precision::kAutocast, Precision::kAutocast, p,
                      [&](int64_t step, const States& before, States& after, StepOutputs&) {
                        if (step != 2) return;
                        Tensor& w = after[0].vars[kernel];
                        w = w.clone();
                        for (size_t i = 0; i < w.as<float>().size(); ++i)
                          w.as<float>()[i] +=
                              1e-4f * (w.as<float>()[i] - before[0].vars[kernel].as<float>()[i]);
                      });
  const Identification m = identified_mixed(e, subject);
  ASSERT_EQ(m.outcome, Identification::Outcome::kUnexplained) << reported_text(m);
  EXPECT_EQ(m.outside[0].tensor, "dense1/kernel") << reported_text(m);
  EXPECT_EQ(m.outside[0].step, 2) << reported_text(m);
}

// An engine of binary32 that declares nothing and has another epsilon in its batch norm: every
// tensor differs by less than results in bfloat16 would.
TEST(MixedPrecisionSlow, AFormulaBelowTheRoundingIsNamed) {
  const auto with_epsilon = [](double epsilon) {
    Scenario s = tiny::scenario(tiny::kConvolutional, {{"tpu.cores", "1"}});
    for (LayerSpec& layer : s.model.layers) layer.epsilon = epsilon;
    return must(make_experiment(s));
  };
  const Experiment e = with_epsilon(1e-5);
  MixedEngine subject(Precision::kF32, std::nullopt, e.whole(), {}, with_epsilon(1e-6));
  const Identification m = identified_mixed(e, subject);
  ASSERT_EQ(m.outcome, Identification::Outcome::kExplained) << reported_text(m);
  EXPECT_TRUE(m.explanations[0].parts[0].cause.starts_with("epsilon = 1e-6")) << reported_text(m);
  EXPECT_EQ(m.computes_as, "f32");
}

// ---- skipped steps

// Skips the update of these steps, as a loss scaler does when its scale was too large.
After leaves_out(std::vector<int64_t> steps) {
  return [steps = std::move(steps)](int64_t step, const States& before, States& after,
                                    StepOutputs& outputs) {
    if (std::ranges::find(steps, step) == steps.end()) return;
    after = before;
    for (std::vector<Tensor>& replica : outputs) {
      Tensor& gradient = replica.back();
      gradient = gradient.clone();
      gradient.as<float>()[0] = INFINITY;
    }
  };
}

Report report_of(Precision computes, std::optional<Precision> declares, const After& after) {
  const Folder folder;
  const Scenario scenario =
      tiny::scenario(tiny::kDense, {{"tpu.cores", "1"}, {"train.steps", "12"}});
  const Program p = must(make_experiment(scenario)).whole();
  DiagnoseOptions o;
  o.subject = "mixed";
  o.directory = folder / "out";
  o.quick = true;
  o.make_subject = [&](const BackendOptions&) -> Result<std::unique_ptr<Backend>> {
    return std::unique_ptr<Backend>(new MixedEngine(computes, declares, p, after));
  };
  return must(diagnose(scenario, o, nullptr, nullptr)).report;
}

TEST(MixedPrecision, AStepThatALossScalerSkipsIsNoFault) {
  for (const auto declares : {std::optional(Precision::kFloat16), std::optional<Precision>()}) {
    const Report r = report_of(Precision::kFloat16, declares, leaves_out({0, 1, 6}));
    EXPECT_NE(r.verdict, VerdictClass::kEngineBug) << r.headline;
    EXPECT_EQ(r.step_coverage.left_out, (std::vector<int64_t>{0, 1, 6}));
    EXPECT_EQ(r.step_coverage.screened, 9);
    EXPECT_EQ(r.step_coverage.steps, 12) << "the run goes on";
    EXPECT_TRUE(std::ranges::any_of(r.notes, [](const std::string& note) {
      return note.find("loss scaler skipped steps 0, 1, 6") != std::string::npos;
    }));
  }
}

// Binary32 does not overflow where float16 does, so an engine that computes in it has no reason to
// skip a step.
void expect_left_out_in_binary32(std::optional<Precision> declares) {
  const Report r = report_of(Precision::kF32, declares, leaves_out({5}));
  EXPECT_EQ(r.verdict, VerdictClass::kEngineBug) << r.headline;
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(r.findings[0].step, 5);
}
TEST(MixedPrecision, AStepThatIsLeftOutInBinary32IsAFault) {
  expect_left_out_in_binary32(std::nullopt);
}
TEST(MixedPrecisionSlow, AStepThatIsLeftOutInDeclaredBinary32IsAFault) {
  expect_left_out_in_binary32(Precision::kF32);
}
TEST(MixedPrecision, AnEngineThatLeavesOutEveryStepIsAtFault) {
  // An engine that skips every step is at fault in float16, too.
  std::vector<int64_t> all;
  for (int64_t step = 0; step < 12; ++step) all.push_back(step);
  const Report none = report_of(Precision::kFloat16, Precision::kFloat16, leaves_out(all));
  EXPECT_EQ(none.verdict, VerdictClass::kEngineBug) << none.headline;
}

// ---- decisions that depend on a rounding

// A healthy engine that rounds operands may have three of four steps outside, but not nearly all of
// twenty-four.
TEST(MixedPrecision, FewStepsDoNotTellADecisionFromAFault) {
  EXPECT_TRUE(may_hang_on_decisions(3, 4, true, 1e-6));
  EXPECT_TRUE(may_hang_on_decisions(4, 4, true, 1e-6));
  EXPECT_FALSE(may_hang_on_decisions(16, 16, true, 1e-6));
  EXPECT_FALSE(may_hang_on_decisions(20, 24, true, 1e-6));
  EXPECT_FALSE(may_hang_on_decisions(3, 4, false, 1e-6)) << "in binary32 decisions are rare";
  EXPECT_TRUE(may_hang_on_decisions(2, 4, false, 1e-6));
}

}  // namespace
}  // namespace twinrun
