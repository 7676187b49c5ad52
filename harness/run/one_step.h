// One step of a program from a given state, and the tensors of it that are compared by instrument 2
// (harness/sharding/ablation.h) and by program identification (harness/identify).
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

// Runs the step on the scenario's batch, fed as the program's sharding says. Errors: the batch
// cannot be read, or the engine fails.
Result<StepResult> one_step(const Experiment& experiment, Engine& engine, int64_t step,
                            const States& states);

// The scenario's first `steps` steps from these states; `each` receives the outputs of every step.
Result<States> run_steps(const Experiment& experiment, Engine& engine, States states, int64_t steps,
                         const std::function<void(StepOutputs&)>& each);

// The kinds of tensors in which the meaning of a step is compared: the gradient as the optimizer
// takes it; the change of parameters; the change of running statistics; the loss of held-out
// samples by the state after the step.
enum class StepKind : uint8_t { kGradient, kUpdate, kStatistics, kEvaluation };
inline constexpr std::array kStepKinds = {StepKind::kGradient, StepKind::kUpdate,
                                          StepKind::kStatistics, StepKind::kEvaluation};
std::string_view to_string(StepKind kind);  // "gradient", "update", "statistics", "evaluation"

// A tensor of a step, in binary64, on each replica; one entry where all replicas are equal.
struct JudgedTensor {
  std::string name;
  StepKind kind = StepKind::kGradient;
  std::vector<std::vector<double>> replicas;
};
using Judged = std::vector<JudgedTensor>;

// The gradients, updates and statistics of a step, in the order of the program.
Judged judged_tensors(const Program& program, const StepResult& result);

// |a - b|^2 of the same tensor of two programs, and |a|^2; both are means over the replicas.
double squared_gap(const JudgedTensor& a, const JudgedTensor& b);
double squared_norm(const JudgedTensor& a);

// after - before in binary64.
std::vector<double> change(const Tensor& before, const Tensor& after);

// The loss of the first held-out samples by each replica's state, in the numbers of `backend`.
// There are 32 samples, or fewer where fewer are held out, or as many as the inference program
// takes where a layer needs larger groups.
class HeldOut {
 public:
  static Result<HeldOut> make(const Experiment& experiment, Backend& backend);
  Result<JudgedTensor> loss(const Program& trained, const States& states);

 private:
  const Experiment* experiment_ = nullptr;
  std::shared_ptr<Engine> engine_;
};

}  // namespace twinrun
