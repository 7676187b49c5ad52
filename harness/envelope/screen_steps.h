// The step screen: looks at every step of a run that shows tensors only, as it is made. The
// reference repeats each step from the subject's own state before it, and each tensor's distance is
// compared with the distances of that tensor at the steps around it. The screen accuses no engine:
// it only chooses the steps that are kept for the ensemble of conforming engines
// (harness/identify/judge_steps.h).
//
//   auto screen = *StepScreen::make(inner, experiment, program, declared, steps, threads);
//   train(..., {.observer = screen.get()});
//   screen->status();  screen->take_states();  screen->summary();
//
// It holds the kept steps and the state before the current step, nothing else.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/envelope/envelope.h"
#include "harness/run/run.h"

namespace twinrun {

// Steps that are kept in any case, of a run of `steps` steps: the first, the last, and between them
// `count` that a seed draws, one from each of as many equal stretches.
std::vector<int64_t> sampled_steps(int64_t steps, int64_t count, uint64_t seed);

// One of our engines, prepared to run `program` in the declared precision of products.
Result<std::unique_ptr<Engine>> reference_of(const Experiment& experiment, const Program& program,
                                             const Capabilities& declared, int threads);

struct ScreenSummary {
  int64_t screened = 0;
  std::vector<int64_t> sampled;  // kept whatever their scores are
  // Steps whose update the script skipped (harness/run/run.h), and the first few of them with their
  // states. They are not screened.
  std::vector<int64_t> left_out;
  std::vector<ProbedState> of_left_out;
  // Parts of the scenario that no screened step exercised, in words: clipping, and tensors that
  // never changed.
  std::vector<std::string> not_exercised;
};

class StepScreen : public StepObserver {
 public:
  // `most`: how many steps are kept at most.
  static Result<std::unique_ptr<StepScreen>> make(StepObserver& inner, const Experiment& experiment,
                                                  const Program& program,
                                                  const Capabilities& declared, int64_t steps,
                                                  int threads, int64_t most = 24);

  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override;
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;

  Status status() const;                   // an error of the reference, if it had one
  std::vector<ProbedState> take_states();  // those kept, by step
  ScreenSummary summary() const;

 private:
  // How the difference of a tensor is measured: its norm, its component along the expected change,
  // its component along the expected values, and the difference between replicas.
  enum Aspect : uint8_t { kNorm, kExpected, kHeld, kReplicas, kAspects };
  struct Tracked {
    Compared what;
    bool alike = false;  // the program computes the same on all replicas
    bool moved = false;  // its expected change was not zero at some step
    std::array<std::vector<float>, kAspects> recent;  // distances at the last steps, a ring
  };
  struct Kept {
    ProbedState state;
    std::vector<float> looks;  // [tensor][aspect]
    double score = 0;          // the largest over all tensors
    double alone = 0;          // the score of the states relative to that of the step's gradients
    bool sampled = false;
  };

  StepScreen(StepObserver& inner, std::unique_ptr<Engine> reference, const Program& program)
      : inner_(inner), reference_(std::move(reference)), program_(program) {}
  void choose(const States& states);
  void compare(const States& after, const StepOutputs& outputs, const States& expected_states,
               const StepOutputs& expected_outputs, std::vector<float>& looks);
  void watch_clipping(const StepOutputs& outputs);
  void set_scores(Kept& kept) const;
  void keep(Kept kept);

  StepObserver& inner_;
  std::unique_ptr<Engine> reference_;
  const Program& program_;
  std::vector<Tracked> tensors_;
  double share_ = 0;  // rounding of product operands in the declared precision, relative
  int64_t steps_ = 0, most_ = 24;
  uint64_t seed_ = 0;
  // The step in progress.
  States before_;
  StepInputs inputs_;
  std::vector<Kept> kept_;
  size_t candidates_ = 0;  // how many steps may be kept besides the sampled ones
  std::vector<int64_t> sampled_;
  int64_t screened_ = 0;
  std::vector<int64_t> left_out_;
  std::vector<ProbedState> of_left_out_;
  double largest_gradient_ = 0;  // by the measure that clipping uses
  bool clipped_ = false;
  std::optional<Error> failed_;
};

}  // namespace twinrun
