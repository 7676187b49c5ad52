#include "program/graph/program.h"

#include <algorithm>

#include "program/analysis/liveness.h"
#include "program/graph/optimizer.h"

namespace twinrun {

std::string_view to_string(StateRole role) {
  switch (role) {
    case StateRole::kParameter:
      return "parameter";
    case StateRole::kSlot:
      return "slot";
    case StateRole::kStatistic:
      return "statistic";
    case StateRole::kCounter:
      return "counter";
  }
  return "?";
}

const StateVar* Program::find_state(std::string_view name) const {
  const int i = state_index(name);
  return i < 0 ? nullptr : &state[static_cast<size_t>(i)];
}
int Program::state_index(std::string_view name) const {
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i].name == name) return static_cast<int>(i);
  }
  return -1;
}
const Output* Program::find_output(std::string_view name) const {
  for (const auto& output : outputs) {
    if (output.name == name) return &output;
  }
  return nullptr;
}

Program training_step(const Program& forward) {
  Program p = forward;
  const int cores = p.sharding.cores;

  std::vector<int> parameters;
  for (size_t i = 0; i < p.state.size(); ++i) {
    if (p.state[i].role == StateRole::kParameter) parameters.push_back(static_cast<int>(i));
  }
  std::vector<ValueId> grads(parameters.size(), kNoValue);
  const std::vector<Objective> objectives =
      p.objectives.empty() ? std::vector<Objective>{{p.loss, ""}} : p.objectives;
  for (const Objective& objective : objectives) {
    std::vector<size_t> mine;
    std::vector<ValueId> wrt;
    for (size_t i = 0; i < parameters.size(); ++i) {
      const StateVar& var = p.state[static_cast<size_t>(parameters[i])];
      if (!objective.scope.empty() && !var.name.starts_with(objective.scope + "/")) continue;
      mine.push_back(i);
      wrt.push_back(var.id);
    }
    // CrossShardOptimizer: MEAN scales the loss before autodiff; the all-reduce itself is a sum.
    ValueId scaled = objective.loss;
    if (cores > 1 && p.sharding.reduction == Reduction::kMean) {
      GraphBuilder b(p.graph, "loss", Phase::kForward);
      scaled = b.binary_scalar(OpKind::kMultiply, objective.loss, 1.0 / cores, "scale_by_cores");
    }
    const std::vector<ValueId> found = differentiate(p.graph, scaled, wrt);
    for (size_t i = 0; i < mine.size(); ++i) grads[mine[i]] = found[i];
  }
  const std::vector<ValueId> raw = grads;

  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i] == kNoValue) continue;
    const std::string name = p.state[static_cast<size_t>(parameters[i])].name;
    if (std::find(raw.begin(), raw.begin() + static_cast<std::ptrdiff_t>(i), raw[i]) !=
        raw.begin() + static_cast<std::ptrdiff_t>(
                          i)) {  // two parameters share it: each gets a name of its own
      const Dims dims = p.graph.type(grads[i]).dims;
      grads[i] =
          GraphBuilder(p.graph).derived(name, Phase::kGradient).reshape(grads[i], dims, "grad");
    }
    if (p.graph.find(name + ".grad") == kNoValue) p.graph.rename(grads[i], name + ".grad");
    if (cores > 1 && p.sharding.reduce_gradients) {
      grads[i] =
          GraphBuilder(p.graph).derived(name + ".grad", Phase::kCollective).all_reduce(grads[i]);
    }
    p.outputs.push_back({name + ".grad", grads[i]});
  }

  ValueId learning_rate = kNoValue;
  for (const auto& input : p.inputs) {
    if (input.name == "learning_rate") learning_rate = input.id;
  }
  if (learning_rate == kNoValue)
    throw GraphError("training_step: the program has no input learning_rate");
  append_update(p, parameters, grads, learning_rate);
  return prune(p);
}

Program prune(const Program& program) {
  const std::vector<bool> dead = dead_values(program);
  Program out = program;
  out.graph = Graph();
  std::vector<ValueId> renamed(static_cast<size_t>(program.graph.size()), kNoValue);
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    Op op = program.graph.op(id);
    if (dead[static_cast<size_t>(id)] && op.kind != OpKind::kParameter) continue;
    for (ValueId& operand : op.operands) operand = renamed[static_cast<size_t>(operand)];
    renamed[static_cast<size_t>(id)] = out.graph.add(std::move(op));
  }
  out.renumber(renamed);
  return out;
}

void Program::renumber(const std::vector<ValueId>& renamed) {
  const auto rename = [&](ValueId& id) {
    if (id != kNoValue) id = renamed[static_cast<size_t>(id)];
  };
  for (auto& input : inputs) rename(input.id);
  for (auto& var : state) {
    rename(var.id);
    rename(var.next);
  }
  for (auto& output : outputs) rename(output.id);
  rename(loss);
  for (auto& objective : objectives) rename(objective.loss);
}

Digest digest(const Program& program) {
  const std::string text = to_text(program);
  return digest_bytes(text.data(), text.size());
}

}  // namespace twinrun
