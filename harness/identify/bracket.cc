// Follows tensors back to their ancestors in the program's graph, and describes what is left of
// them.
#include "harness/identify/bracket.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/lockstep/violation.h"

namespace twinrun {
namespace {

using Ops = std::vector<bool>;

// A tensor inside excludes an error only if it would show one that is this many times smaller than
// that of the tensors outside: ops may reduce an error by some factor, and in a loss, a sum over
// everything, errors cancel.
constexpr double kFiner = 10, kFinerOfOneNumber = 100;

Ops ancestors(const Program& program, ValueId id) {
  Ops out(static_cast<size_t>(program.graph.size()));
  out[static_cast<size_t>(id)] = true;
  for (ValueId at = id; at >= 0; --at) {
    if (!out[static_cast<size_t>(at)]) continue;
    for (const ValueId operand : program.graph.op(at).operands)
      out[static_cast<size_t>(operand)] = true;
  }
  return out;
}

constexpr std::string_view kShared = "what these updates share, such as the learning rate";
constexpr std::string_view kStatistics =
    "how running statistics are updated: from which batch, how often, with which momentum";

enum class Pass : uint8_t { kForward, kBackward, kUpdate };

Pass pass_of(const Program& program, ValueId id) {
  const Op& op = program.graph.op(id);
  if (op.phase == Phase::kUpdate) return Pass::kUpdate;
  if (op.phase == Phase::kForward) return Pass::kForward;
  return op.phase == Phase::kCollective && id <= program.loss ? Pass::kForward : Pass::kBackward;
}

// "of conv1", "of conv1 or relu1", "from conv1 to dense2": in the order of computation.
std::string layers_text(const std::vector<std::string>& layers) {
  if (layers.empty()) return "";
  const auto name = [](const std::string& layer) {
    return layer == "loss" ? std::string("the loss") : layer;
  };
  if (layers.size() == 1) return " of " + name(layers[0]);
  if (layers.size() == 2) return fmt::format(" of {} or {}", name(layers[0]), name(layers[1]));
  return fmt::format(" from {} to {}", name(layers.front()), name(layers.back()));
}

std::string text_of(const Program& program, const Ops& left) {
  std::vector<std::string> layers[3];
  bool own = true;  // everything left belongs to one parameter's gradient
  std::string parameter;
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    const Op& op = program.graph.op(id);
    if (!left[static_cast<size_t>(id)] || op.kind == OpKind::kParameter ||
        class_of(op.kind) == OpClass::kSource)
      continue;
    std::vector<std::string>& of = layers[static_cast<size_t>(pass_of(program, id))];
    const std::string layer = layer_of(op.name);
    if (!layer.empty() && std::ranges::find(of, layer) == of.end()) of.push_back(layer);
    const size_t grad = op.name.find(".grad");
    const std::string base = op.name.substr(0, grad);
    own = own && grad != std::string::npos && program.find_output(base + ".grad") != nullptr &&
          (parameter.empty() || parameter == base);
    parameter = base;
  }
  const auto& [forward, backward, update] = layers;
  if (own && !parameter.empty())
    return fmt::format("the gradient of {} itself, not what flows back through the layers",
                       parameter);
  if (forward.empty() && backward.empty()) {
    const bool shared =
        std::ranges::none_of(program.state, [&, &update = update](const StateVar& var) {
          return var.role != StateRole::kCounter &&
                 std::ranges::find(update, layer_of(var.name)) != update.end();
        });
    return update.empty() ? "" : shared ? std::string(kShared) : "the update" + layers_text(update);
  }
  if (backward.empty()) return "the forward pass" + layers_text(forward);
  if (forward.empty()) return "the backward pass" + layers_text(backward);
  return fmt::format("the forward pass{}, or the backward pass{}", layers_text(forward),
                     layers_text(backward));
}

}  // namespace

Bracket bracket_of(const Program& program, const std::vector<SeenTensor>& seen) {
  Bracket out;
  const auto size = static_cast<size_t>(program.graph.size());
  // `wrong`: the tensors outside, and all that follows from them.
  Ops left(size, true), wrong(size);
  double relative = 0;
  bool any = false;
  for (const SeenTensor& t : seen) {
    if (!t.outside) continue;
    const Ops of = ancestors(program, t.id);
    for (size_t i = 0; i < size; ++i) left[i] = left[i] && of[i];
    wrong[static_cast<size_t>(t.id)] = true;
    relative = std::max(relative, t.relative);
    any = true;
  }
  if (!any) return out;
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    for (const ValueId operand : program.graph.op(id).operands) {
      if (wrong[static_cast<size_t>(operand)]) wrong[static_cast<size_t>(id)] = true;
    }
  }
  const Ops common = left;
  std::vector<std::pair<int64_t, const SeenTensor*>> telling;
  for (const SeenTensor& t : seen) {
    // A tensor that follows from a wrong one and is inside all the same does not react to it.
    if (t.outside || wrong[static_cast<size_t>(t.id)]) continue;
    const double finer = program.graph.type(t.id).elements() == 1 ? kFinerOfOneNumber : kFiner;
    if (!(finer * t.resolution <= relative)) continue;
    const Ops of = ancestors(program, t.id);
    int64_t spared = 0;
    for (size_t i = 0; i < size; ++i) {
      if (!of[i]) continue;
      spared += common[i] ? 1 : 0;
      left[i] = false;
    }
    if (spared > 0) telling.emplace_back(spared, &t);
  }
  out.text = text_of(program, left);
  const auto updates = [&](const SeenTensor& t) {
    return !t.outside || pass_of(program, t.id) == Pass::kUpdate;
  };
  if (out.text.empty() && std::ranges::all_of(seen, updates) &&
      std::ranges::count_if(seen, &SeenTensor::outside) > 1) {
    const bool statistics = std::ranges::all_of(seen, [&](const SeenTensor& t) {
      const int var = program.state_index(t.name);
      return !t.outside ||
             (var >= 0 && program.state[static_cast<size_t>(var)].role == StateRole::kStatistic);
    });
    out.text = statistics ? kStatistics : kShared;
  }
  if (out.text.empty()) return out;
  // Whether the gradient that the update of each weight or slot outside takes is among the tensors
  // inside.
  const bool gradient = std::ranges::all_of(seen, [&](const SeenTensor& state) {
    return !state.outside || std::ranges::any_of(telling, [&](const auto& t) {
      const std::string& name = t.second->name;
      const std::string of = name.substr(0, name.size() - std::min<size_t>(5, name.size()));
      return name.ends_with(".grad") && (state.name == of || state.name.starts_with(of + "."));
    });
  });
  if (out.text.starts_with("the update of ") && gradient) out.text += ", whose gradient is right";
  std::ranges::stable_sort(telling, std::greater<>(), [](const auto& t) { return t.first; });
  for (size_t i = 0; i < std::min<size_t>(telling.size(), 3); ++i) {
    const SeenTensor& t = *telling[i].second;
    const bool state = program.state_index(t.name) >= 0;
    out.right += (i == 0 ? "" : ", ") + tensor_words(t.name, state);
  }
  return out;
}

ValueId computed_at(const Program& program, const std::string& tensor, ValueId id) {
  const ValueId own = tensor.ends_with(".grad") ? program.graph.find(tensor) : kNoValue;
  return own == kNoValue ? id : own;
}

std::string tensor_words(const std::string& tensor, bool is_state) {
  constexpr std::string_view kOutput = "output/";
  if (tensor.ends_with(".grad")) {
    const std::string of = tensor.substr(0, tensor.size() - 5);
    return "the gradient of " +
           (of.starts_with(kOutput) ? "what " + of.substr(kOutput.size()) + " gives" : of);
  }
  if (tensor.starts_with(kOutput)) return "the output of " + tensor.substr(kOutput.size());
  if (is_state) return "the update of " + tensor;
  return tensor == "loss" ? "the loss" : tensor;
}

}  // namespace twinrun
