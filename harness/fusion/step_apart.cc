// Compares an untraced step with an ensemble of conforming engines.
#include "harness/fusion/step_apart.h"

#include "backends/core/wrapped.h"
#include "backends/variants/variant.h"
#include "harness/experiment/engines.h"
#include "harness/identify/identify_fit.h"

namespace twinrun {
namespace {

// Runs every step with a trace that nobody reads.
class TracedEngine : public Engine {
 public:
  explicit TracedEngine(Engine& inner) : inner_(inner) {}
  const Program& program() const override { return inner_.program(); }
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink*, OpHooks* hooks) override {
    class Nobody : public TraceSink {
      void on_op(const OpEvent&) override {}
    } nobody;
    return inner_.step(step, states, inputs, outputs, &nobody, hooks);
  }

 private:
  Engine& inner_;
};

}  // namespace

Result<StepAround> StepAround::make(const Experiment& experiment, const Program& program,
                                    const Capabilities& declared, const ProbedState& at,
                                    int threads) {
  StepAround out;
  out.experiment_ = &experiment;
  out.program_ = &program;
  out.tensors_ = compared_tensors(program);
  out.at_ = {at.step, at.states};
  const int bits = declared.precision == DotPrecision::kF32 ? kF32Bits : kBf16Bits;
  std::vector<Observed> members;
  for (uint64_t number = 1; number <= kMembers; ++number) {
    const auto backend = make_variant_backend(variant_within(number, declared),
                                              backend_options(experiment.scenario, threads));
    TWINRUN_ASSIGN(const auto engine, backend->prepare(program));
    TWINRUN_ASSIGN(Observed o, observe(experiment, engine.get(), program, out.tensors_, {out.at_},
                                       number, weight_move(program, bits)));
    members.push_back(std::move(o));
  }
  out.around_ = envelope_of(members);
  return out;
}

Result<std::optional<StepApart>> StepAround::of(Engine& engine, bool traced,
                                                StepApart* nearest) const {
  TracedEngine with_trace(engine);
  TWINRUN_ASSIGN(const Observed subject,
                 observe(*experiment_, traced ? static_cast<Engine*>(&with_trace) : &engine,
                         *program_, tensors_, {at_}));
  const std::vector<Distance> found = distances(subject, around_);
  const double threshold =
      student_limit(kMembers, kFalseAlarm / static_cast<double>(std::max<size_t>(1, found.size())));
  std::optional<StepApart> out;
  StepApart largest;
  for (const Distance& d : found) {
    if (d.ratio <= largest.ratio) continue;
    largest = {tensors_[d.value / subject.replicas].tensor, d.ratio, threshold};
    if (d.ratio > threshold && beyond(d)) out = largest;
  }
  if (nearest != nullptr) *nearest = largest;
  return out;
}

}  // namespace twinrun
