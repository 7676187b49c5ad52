// How far an untraced step is from what conforming engines compute, where the replay of the whole
// step is not sharp enough or not possible (several cores). It proves nothing: a decision that
// depends on rounding may explain a distance. It says where a search is worth its compilations.
//
//   TWINRUN_ASSIGN(const auto around, StepAround::make(experiment, program, declared, state, 2));
//   TWINRUN_ASSIGN(const auto apart, around.of(*engine));
//   if (apart) apart->tensor;
#pragma once

#include <optional>
#include <string>

#include "harness/envelope/envelope.h"

namespace twinrun {

struct StepApart {
  std::string tensor;  // the one that is farthest away, in units of the spread
  double ratio = 0;    // its distance from the mean of conforming engines, in units of their spread
  double threshold = 0;  // a conforming engine exceeds it with probability `kFalseAlarm`
};

class StepAround {
 public:
  static constexpr double kFalseAlarm = 1e-6;  // of all tensors of the step together
  static constexpr uint64_t kMembers = 12;

  // Keeps references to the experiment and the program. `at`: the state that the step starts from.
  static Result<StepAround> make(const Experiment& experiment, const Program& program,
                                 const Capabilities& declared, const ProbedState& at, int threads);
  // Runs the step on the engine, without a trace or with one. nullopt: it is where conforming
  // engines are. `nearest`: receives the largest distance in any case.
  Result<std::optional<StepApart>> of(Engine& engine, bool traced,
                                      StepApart* nearest = nullptr) const;

 private:
  const Experiment* experiment_ = nullptr;
  const Program* program_ = nullptr;
  std::vector<Compared> tensors_;
  ProbedState at_;
  Envelope around_;
};

}  // namespace twinrun
