// One step of a program from a given state, and what of it means something: what instrument 2 and the matching compare.
//
//   auto r = one_step(experiment, *engine, step, states);
//   Judged judged = judged_tensors(engine->program(), *r);
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun {

struct StepResult {
  States before, after;
  StepOutputs outputs;
};

// The scenario's batch of that step, as the program's sharding feeds it.
Result<StepResult> one_step(const Experiment& experiment, Engine& engine, int64_t step,
                            const States& states);

// The scenario's first `steps` steps from these states; `each` gets the outputs of every one.
Result<States> run_steps(const Experiment& experiment, Engine& engine, States states, int64_t steps,
                         const std::function<void(StepOutputs&)>& each);

// What a step means, apart: the gradient as the optimizer takes it; the change of parameters; the change of running statistics;
// the loss of held-out samples by the state after the step.
enum class StepKind : uint8_t { kGradient, kUpdate, kStatistics, kEvaluation };
inline constexpr std::array kStepKinds = {StepKind::kGradient, StepKind::kUpdate,
                                          StepKind::kStatistics, StepKind::kEvaluation};
std::string_view to_string(StepKind kind);  // "gradient", "update", "statistics", "evaluation"

// A tensor of a step on each replica; one entry where all replicas have the same.
struct JudgedTensor {
  std::string name;
  StepKind kind = StepKind::kGradient;
  std::vector<std::vector<double>> replicas;
};
using Judged = std::vector<JudgedTensor>;

// Gradients, updates and statistics of a step, in the program's order.
Judged judged_tensors(const Program& program, const StepResult& result);

// Mean over the replicas of |a - b|^2, for the same tensor of two programs; of |a|^2.
double squared_gap(const JudgedTensor& a, const JudgedTensor& b);
double squared_norm(const JudgedTensor& a);

// after - before in binary64.
std::vector<double> change(const Tensor& before, const Tensor& after);

// The loss of the first held-out samples (32, unless the model wants other numbers) in binary64, by each replica's state.
class HeldOut {
 public:
  static Result<HeldOut> make(const Experiment& experiment, Backend& backend);
  Result<JudgedTensor> loss(const Program& trained, const States& states);

 private:
  const Experiment* experiment_ = nullptr;
  std::shared_ptr<Engine> engine_;
};

}  // namespace twinrun
