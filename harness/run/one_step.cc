// Runs single steps, and extracts the tensors by which two programs are compared.
#include "harness/run/one_step.h"

#include <algorithm>
#include <numeric>

#include "harness/run/step_loop.h"
#include "harness/tensors/distance.h"

namespace twinrun {
namespace {

constexpr int64_t kHeldOut = 32;

// value(replica) on each replica, or once where same(replica) holds for all others.
template <typename Same, typename Value>
std::vector<std::vector<double>> on_replicas(size_t replicas, Same same, Value value) {
  std::vector<std::vector<double>> out{value(0)};
  bool all = true;
  for (size_t r = 1; r < replicas; ++r) all = all && same(r);
  for (size_t r = 1; r < replicas && !all; ++r) out.push_back(value(r));
  return out;
}

}  // namespace

std::string_view to_string(StepKind kind) {
  switch (kind) {
    case StepKind::kGradient:
      return "gradient";
    case StepKind::kUpdate:
      return "update";
    case StepKind::kStatistics:
      return "statistics";
    case StepKind::kEvaluation:
      return "evaluation";
  }
  return "?";
}

Result<StepResult> one_step(const Experiment& e, Engine& engine, int64_t step,
                            const States& states) {
  const Program& program = engine.program();
  StepFeed feed(e, program);
  TWINRUN_ASSIGN(const StepInputs inputs, feed.inputs(step));
  StepResult result{states, states, {}};
  TWINRUN_RETURN_IF_ERROR(engine.step(step, result.after, inputs, result.outputs));
  return result;
}

Result<States> run_steps(const Experiment& e, Engine& engine, States states, int64_t steps,
                         const std::function<void(StepOutputs&)>& each) {
  StepLoop loop(e, engine.program(), engine, std::move(states));
  for (int64_t step = 0; step < steps; ++step) {
    TWINRUN_RETURN_IF_ERROR(loop.run(step));
    each(loop.outputs);
  }
  return std::move(loop.states);
}

std::vector<double> change(const Tensor& before, const Tensor& after) {
  std::vector<double> out = as_doubles(after);
  const std::vector<double> old = as_doubles(before);
  for (size_t i = 0; i < out.size(); ++i) out[i] -= old[i];
  return out;
}

Judged judged_tensors(const Program& program, const StepResult& r) {
  Judged out;
  const size_t replicas = r.outputs.size();
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    if (!program.outputs[o].name.ends_with(".grad")) continue;
    out.push_back(
        {program.outputs[o].name, StepKind::kGradient,
         on_replicas(
             replicas, [&](size_t k) { return r.outputs[k][o].same_bits(r.outputs[0][o]); },
             [&](size_t k) { return as_doubles(r.outputs[k][o]); })});
  }
  for (size_t i = 0; i < program.state.size(); ++i) {
    const StateVar& var = program.state[i];
    const bool statistic = var.role == StateRole::kStatistic;
    if (!statistic && var.role != StateRole::kParameter) continue;
    out.push_back({var.name, statistic ? StepKind::kStatistics : StepKind::kUpdate,
                   on_replicas(
                       replicas,
                       [&](size_t k) {
                         return r.after[k].vars[i].same_bits(r.after[0].vars[i]) &&
                                r.before[k].vars[i].same_bits(r.before[0].vars[i]);
                       },
                       [&](size_t k) { return change(r.before[k].vars[i], r.after[k].vars[i]); })});
  }
  return out;
}

double squared_norm(const JudgedTensor& a) {
  double sum = 0;
  for (const auto& replica : a.replicas)
    sum += std::inner_product(replica.begin(), replica.end(), replica.begin(), 0.0);
  return sum / static_cast<double>(a.replicas.size());
}

double squared_gap(const JudgedTensor& a, const JudgedTensor& b) {
  const size_t n = std::max(a.replicas.size(), b.replicas.size());
  double sum = 0;
  for (size_t r = 0; r < n; ++r) {
    const auto& x = a.replicas[a.replicas.size() > 1 ? r : 0];
    const auto& y = b.replicas[b.replicas.size() > 1 ? r : 0];
    sum += squared_distance(x, y);
  }
  return sum / static_cast<double>(n);
}

Result<HeldOut> HeldOut::make(const Experiment& e, Backend& backend) {
  HeldOut h;
  h.experiment_ = &e;
  const int64_t samples = std::min(kHeldOut, e.data->eval.count());
  Program program = e.inference;
  try {
    if (samples < program.batch) program = rebatch(e.inference, samples);
  } catch (const GraphError&) {
    // A layer needs larger groups of samples: keep the batch of the inference program.
  }
  TWINRUN_ASSIGN(h.engine_, backend.prepare(prune(program)));
  return h;
}

Result<JudgedTensor> HeldOut::loss(const Program& trained, const States& states) {
  const Experiment& e = *experiment_;
  const Program& program = engine_->program();
  const Samples samples = e.data->eval.rows(0, program.batch);
  std::vector<Tensor> inputs;
  for (const Input& input : program.inputs) {
    Tensor numbers = Tensor::empty({DType::kI32, {program.batch}});
    std::iota(numbers.as<int32_t>().begin(), numbers.as<int32_t>().end(), 0);
    const bool features = input.name == "images" || input.name == "tokens";
    inputs.push_back(features                        ? samples.features
                     : input.name == "labels"        ? samples.labels
                     : input.name == "weights"       ? samples.weights
                     : input.name == "sample_ids"    ? numbers
                     : input.name == "learning_rate" ? Tensor::scalar(0)
                                                     : Tensor::scalar_i32(0));
    if (!inputs.back().valid())
      return Error{"nothing feeds the input '" + input.name + "'", "evaluation", ""};
  }
  std::vector<int> places;
  for (const StateVar& var : program.state) {
    const int average = e.scenario.optimizer.ema_eval ? trained.state_index(var.name + ".ema") : -1;
    places.push_back(average >= 0 ? average : trained.state_index(var.name));
    if (places.back() < 0)
      return Error{"the trained program has no state '" + var.name + "'", "evaluation", ""};
  }
  JudgedTensor result{"held-out loss", StepKind::kEvaluation, {}};
  const auto all_same = std::ranges::all_of(states, [&](const ReplicaState& r) {
    return std::ranges::all_of(places, [&](int p) {
      return r.vars[static_cast<size_t>(p)].same_bits(states[0].vars[static_cast<size_t>(p)]);
    });
  });
  for (const ReplicaState& replica : states) {
    if (all_same && !result.replicas.empty()) break;
    States one(1);
    for (int place : places) one[0].vars.push_back(replica.vars[static_cast<size_t>(place)]);
    StepOutputs outputs;
    TWINRUN_RETURN_IF_ERROR(engine_->step(0, one, {inputs}, outputs));
    for (size_t o = 0; o < program.outputs.size(); ++o) {
      if (program.outputs[o].name == "loss") result.replicas.push_back(as_doubles(outputs[0][o]));
    }
  }
  return result;
}

}  // namespace twinrun
