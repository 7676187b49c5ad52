// The training step: L2 term, gradients, clipping, reduction over cores and update; layers as
// outputs; pruning.
#include "program/graph/program.h"

#include <algorithm>

#include "program/graph/accumulate.h"
#include "program/graph/clip.h"
#include "program/graph/core_groups.h"
#include "program/graph/liveness.h"
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

namespace {

bool below(const std::string& name, const std::string& scope) {
  return scope.empty() || name.starts_with(scope + "/");
}

// Adds l2 / 2 * the sum of the kernels' squares to each objective, as TensorFlow's l2_loss in a
// model's loss does. Each core adds the whole term, unless the sharding says otherwise. Kernels are
// the parameters of rank 2 and more.
void add_l2(Program& p, const std::vector<int>& parameters, std::vector<Objective>& objectives) {
  double l2 = p.optimizer.l2;
  if (l2 <= 0) return;
  if (p.sharding.l2_once && p.sharding.reduction == Reduction::kSum) l2 /= p.sharding.cores;
  if (p.sharding.l2_every_core && p.sharding.reduction == Reduction::kMean) l2 *= p.sharding.cores;
  GraphBuilder b(p.graph, "loss", Phase::kForward);
  for (Objective& objective : objectives) {
    ValueId total = kNoValue;
    for (int i : parameters) {
      const StateVar& w = p.state[static_cast<size_t>(i)];
      const bool counts = p.optimizer.l2_of_all || w.type.rank() >= 2;
      if (!counts || !below(w.name, objective.scope)) continue;
      const ValueId squares = b.reduce(b.mul(w.id, w.id, "l2_squares"), other_dims(w.type.rank()),
                                       Reducer::kSum, "l2_sum");
      total = total == kNoValue ? squares : b.add(total, squares, "l2_total");
    }
    if (total == kNoValue) continue;
    const ValueId plain = objective.loss;
    objective.loss =
        b.add(plain, b.binary_scalar(OpKind::kMultiply, total, l2 / 2, "l2"), "with_l2");
    if (p.loss == plain) p.loss = objective.loss;
    for (Output& output : p.outputs) {
      if (output.id == plain && output.name.ends_with("loss")) output.id = objective.loss;
    }
  }
}

}  // namespace

Program training_step(const Program& forward) {
  Program p = forward;
  const int cores = p.sharding.cores;

  std::vector<int> parameters;
  std::vector<std::string> names;
  for (size_t i = 0; i < p.state.size(); ++i) {
    if (p.state[i].role != StateRole::kParameter) continue;
    parameters.push_back(static_cast<int>(i));
    names.push_back(p.state[i].name);
  }
  std::vector<Objective> objectives = p.objectives;
  if (objectives.empty()) objectives.push_back({p.loss, ""});
  add_l2(p, parameters, objectives);

  std::vector<ValueId> grads(parameters.size(), kNoValue);
  for (const Objective& objective : objectives) {
    std::vector<size_t> mine;
    std::vector<ValueId> wrt;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!below(names[i], objective.scope)) continue;
      mine.push_back(i);
      wrt.push_back(p.state[static_cast<size_t>(parameters[i])].id);
    }
    // As in CrossShardOptimizer, a mean reduction scales the loss before autodiff; the all-reduce
    // is a sum.
    ValueId scaled = objective.loss;
    GraphBuilder b(p.graph, "loss", Phase::kForward);
    const Scaling scaling = p.sharding.scaling;
    if (cores > 1 && p.sharding.reduction == Reduction::kMean && scaling != Scaling::kNever)
      scaled =
          b.binary_scalar(OpKind::kMultiply, scaled, 1.0 / scaled_by(p.sharding), "scale_by_cores");
    if (cores > 1 && scaling == Scaling::kOnceMore)
      scaled = b.binary_scalar(OpKind::kMultiply, scaled, 1.0 / cores, "scale_by_cores_again");
    if (p.optimizer.gradient_scale != 1)
      scaled = b.binary_scalar(OpKind::kMultiply, scaled, p.optimizer.gradient_scale, "loss_scale");
    std::vector<ValueId> all;
    const std::vector<ValueId> found = differentiate(p.graph, scaled, wrt, &all);
    for (size_t i = 0; i < mine.size(); ++i) grads[mine[i]] = found[i];
    for (LayerOutput& layer : p.layers) {
      if (layer.value != kNoValue) layer.gradient = all[static_cast<size_t>(layer.value)];
    }
  }
  for (size_t i = 0; i < grads.size(); ++i) {
    if (!is_among(p.optimizer.stopped, names[i])) continue;
    const ValueId own = p.state[static_cast<size_t>(parameters[i])].id;
    GraphBuilder b = GraphBuilder(p.graph).derived(names[i], Phase::kGradient);
    grads[i] = b.broadcast_scalar(b.constant(0, DType::kF32, "stopped"), own, "grad");
  }
  const std::vector<ValueId> raw = grads;

  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i] == kNoValue) continue;
    const auto earlier = raw.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find(raw.begin(), earlier, raw[i]) != earlier) {
      // Two parameters have the same gradient value: a reshape gives the second one a separate
      // name.
      const Dims dims = p.graph.type(grads[i]).dims;
      grads[i] =
          GraphBuilder(p.graph).derived(names[i], Phase::kGradient).reshape(grads[i], dims, "grad");
    }
    if (p.graph.find(names[i] + ".grad") == kNoValue) p.graph.rename(grads[i], names[i] + ".grad");
  }
  const bool clip_first = cores > 1 && p.sharding.clipping == Clipping::kBeforeAllReduce;
  if (clip_first) clip_gradients(p, names, grads, Phase::kGradient);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i] == kNoValue || cores == 1 || !p.sharding.reduce_gradients) continue;
    GraphBuilder b = GraphBuilder(p.graph).derived(names[i] + ".grad", Phase::kCollective);
    if (std::ranges::find(p.sharding.unreduced, names[i]) != p.sharding.unreduced.end()) {
      if (p.sharding.reduction == Reduction::kMean && p.sharding.scaling != Scaling::kNever)
        grads[i] = b.binary_scalar(OpKind::kMultiply, grads[i], scaled_by(p.sharding), "unscaled");
    } else if (p.sharding.reduction_groups.size > 0) {
      grads[i] = sum_over_group(b, grads[i], replica_id_of(p), cores, p.sharding.reduction_groups);
    } else {
      grads[i] = b.all_reduce(grads[i]);
    }
  }
  const Accumulation accumulation = begin_accumulation(p, parameters, grads);
  const std::vector<ValueId> unclipped = grads;
  if (!clip_first) clip_gradients(p, names, grads, Phase::kUpdate);
  for (size_t i = 0; i < grads.size(); ++i) {
    if (grads[i] != kNoValue)
      p.outputs.push_back(
          {names[i] + ".grad", p.sharding.shows_unclipped ? unclipped[i] : grads[i]});
  }

  ValueId learning_rate = kNoValue;
  for (const auto& input : p.inputs) {
    if (input.name == "learning_rate") learning_rate = input.id;
  }
  if (learning_rate == kNoValue)
    throw GraphError("training_step: the program has no input learning_rate");
  append_update(p, parameters, grads, learning_rate);
  end_accumulation(p, accumulation);
  return prune(p);
}

Program with_layers_shown(const Program& step) {
  Program out = step;
  const Sharding& s = step.sharding;
  const bool over_cores = s.cores > 1 && s.reduction == Reduction::kMean;
  // Where gradients are scaled in another way, it is unknown which scaling a script's layer
  // gradients have.
  const bool scaled =
      step.optimizer.gradient_scale != 1 || (s.cores > 1 && s.scaling != Scaling::kByReduction);
  for (const LayerOutput& layer : step.layers) {
    if (layer.value == kNoValue) continue;
    out.outputs.push_back({layer.name, layer.value, true});
    if (layer.gradient == kNoValue || scaled) continue;
    ValueId own = layer.gradient;
    if (over_cores)
      own = GraphBuilder(out.graph)
                .derived(layer.name, Phase::kGradient)
                .binary_scalar(OpKind::kMultiply, own, s.cores, "of_own_loss");
    out.outputs.push_back({layer.name + ".grad", own, true});
  }
  return out;
}

Program prune(const Program& program) {
  const std::vector<bool> dead = dead_values(program);
  std::vector<bool> bound(static_cast<size_t>(program.graph.size()), false);
  for (const Input& input : program.inputs) bound[static_cast<size_t>(input.id)] = true;
  for (const StateVar& var : program.state) bound[static_cast<size_t>(var.id)] = true;
  Program out = program;
  out.graph = Graph();
  std::vector<ValueId> renamed(static_cast<size_t>(program.graph.size()), kNoValue);
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    Op op = program.graph.op(id);
    if (dead[static_cast<size_t>(id)] && !bound[static_cast<size_t>(id)]) continue;
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
  for (auto& layer : layers) {
    rename(layer.value);
    rename(layer.gradient);
  }
  rename(loss);
  for (auto& objective : objectives) rename(objective.loss);
}

Digest digest(const Program& program) {
  const std::string text = to_text(program);
  return digest_bytes(text.data(), text.size());
}

}  // namespace twinrun
