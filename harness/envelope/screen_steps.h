// Every step of a run that shows tensors only, looked at as it is made: the reference takes each step again from the subject's own
// state before it, and how far the two are apart is set against what that tensor's distances were at the steps around it. Nobody is
// accused here: the screen only chooses which steps are kept for the ensemble of honest engines (harness/identify/judge_steps.h).
//
//   auto screen = *StepScreen::make(inner, experiment, program, declared, steps, threads);
//   train(..., {.observer = screen.get()});
//   screen->status();  screen->take_states();  screen->summary();
//
// Beside the state before the step in progress nothing is held but the steps that are kept.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "harness/envelope/envelope.h"
#include "harness/run/run.h"

namespace twinrun {

// Steps of which a run of so many is asked in any case: the first, the last, and between them `count` that a seed draws, one from
// each of as many equal stretches.
std::vector<int64_t> sampled_steps(int64_t steps, int64_t count, uint64_t seed);

// An engine of ours that runs `program` in the declared precision of products.
Result<std::unique_ptr<Engine>> reference_of(const Experiment& experiment, const Program& program,
                                             const Capabilities& declared, int threads);

struct ScreenSummary {
  int64_t screened = 0;
  std::vector<int64_t> sampled;  // kept whatever they look like
  // Steps whose update the script left out (harness/run/run.h), and the first few of them: they are not screened.
  std::vector<int64_t> left_out;
  std::vector<MatchState> of_left_out;
  // What of the scenario no screened step has exercised, in words; empty: nothing that is looked for.
  std::vector<std::string> not_exercised;
};

class StepScreen : public StepObserver {
 public:
  // `most`: steps that are kept.
  static Result<std::unique_ptr<StepScreen>> make(StepObserver& inner, const Experiment& experiment,
                                                  const Program& program,
                                                  const Capabilities& declared, int64_t steps,
                                                  int threads, int64_t most = 24);

  TraceSink* begin_step(int64_t step, const States& before, const StepInputs& inputs) override;
  void end_step(int64_t step, const States& after, const StepOutputs& outputs) override;

  Status status() const;                  // an error of the reference
  std::vector<MatchState> take_states();  // those kept, by step
  ScreenSummary summary() const;

 private:
  // How a tensor's difference is looked at: its norm, along what was due, along what is stored, and between the replicas.
  enum Aspect : uint8_t { kNorm, kDue, kHeld, kReplicas, kAspects };
  struct Tracked {
    Compared what;
    bool alike = false;  // the program computes the same on all replicas
    bool moved = false;  // what was due was not zero at some step
    std::array<std::vector<float>, kAspects> recent;  // distances of the last steps, in a ring
  };
  struct Kept {
    MatchState state;
    std::vector<float> looks;  // [tensor][aspect]
    double score = 0;          // the largest of all tensors
    double alone = 0;  // of states, as far as the gradients of the same step do not show it as well
    bool sampled = false;
  };

  StepScreen(StepObserver& inner, std::unique_ptr<Engine> reference, const Program& program)
      : inner_(inner), reference_(std::move(reference)), program_(program) {}
  void choose(const States& states);
  void compare(const States& after, const StepOutputs& outputs, const States& due_states,
               const StepOutputs& due_outputs, std::vector<float>& looks);
  void watch_clipping(const StepOutputs& outputs);
  void set_scores(Kept& kept) const;
  void keep(Kept kept);

  StepObserver& inner_;
  std::unique_ptr<Engine> reference_;
  const Program& program_;
  std::vector<Tracked> tensors_;
  double share_ = 0;  // of what is due: the rounding of the declared precision's operands
  int64_t steps_ = 0, most_ = 24;
  uint64_t seed_ = 0;
  // Of the step in progress.
  States before_;
  StepInputs inputs_;
  std::vector<Kept> kept_;
  size_t candidates_ = 0;  // how many of them may be there beside the sampled ones
  std::vector<int64_t> sampled_;
  int64_t screened_ = 0;
  std::vector<int64_t> left_out_;
  std::vector<MatchState> of_left_out_;
  double largest_gradient_ = 0;  // as clipping measures it
  bool clipped_ = false;
  std::optional<Error> failed_;
};

}  // namespace twinrun
