// Finds where in the model a step went wrong, from the outputs of an engine's layers: the first
// value outside in the order of computation, and the layers that compute it from values inside.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "backends/exec/messages.h"
#include "harness/experiment/engines.h"
#include "harness/identify/identify_fit.h"
#include "harness/identify/judge_steps.h"
#include "harness/run/one_step.h"

namespace twinrun {
namespace {

// Members hold the outputs of all layers at once: they get a quarter of what a match of many steps
// may keep.
constexpr int64_t kOfBudget = 4;

// A value of a step that is not a state: a layer's output, its gradient, the loss, or a parameter's
// gradient.
struct Shown {
  std::string name;
  ValueId id = kNoValue;  // where the program computes it
  size_t index = 0;       // of the program's outputs
  bool of_layer = false;  // false: every step shows it
  bool is_gradient = false;
};

// The values of a program whose layers are shown, in the order of computation; `step` is the same
// program without. A layer that passes its input on has the value that it reads; in the backward
// pass, the layer before it has the gradient that it was given. Such values come one after the
// other.
std::vector<Shown> shown_by(const Program& step, const Program& shown) {
  std::vector<Shown> out;
  for (size_t o = 0; o < shown.outputs.size(); ++o) {
    const Output& output = shown.outputs[o];
    if (!output.of_layer && !exec::is_asked_for(output)) continue;
    Shown s{output.name, output.id, o, output.of_layer, output.name.ends_with(".grad")};
    for (const LayerOutput& layer : step.layers) {
      if (s.of_layer && s.is_gradient && s.name == layer.name + ".grad") s.id = layer.gradient;
    }
    out.push_back(std::move(s));
  }
  std::ranges::stable_sort(out, {}, [](const Shown& s) {
    const auto place = static_cast<int64_t>(s.index);
    return std::pair(s.id, s.is_gradient ? -place : place);
  });
  return out;
}

std::vector<Compared> compared(const Program& program, const std::vector<Shown>& shown,
                               int64_t most) {
  std::vector<Compared> out;
  for (const Shown& s : shown) {
    const int64_t elements = program.graph.type(program.outputs[s.index].id).elements();
    out.push_back({s.name, false, s.index, s.id, elements, elements});
  }
  share_elements(out, most);
  return out;
}

// The layer that an op belongs to: "conv1" for "conv1/kernel.grad"; "loss" for all that the loss
// computes.
std::string layer_of_op(const Program& program, const std::string& op) {
  for (const LayerOutput& layer : program.layers) {
    if (op.starts_with(layer.name + "/")) return layer.name;
  }
  return op.substr(0, op.find_first_of("/."));
}

// The way back from a value outside to the nearest values inside.
struct Track {
  std::vector<std::string> layers, from;
};
Track track_to(const Program& program, const Shown& wrong, const std::vector<Shown>& shown) {
  std::map<ValueId, const Shown*> inside;
  for (const Shown& s : shown) {
    if (s.name == wrong.name) break;
    if (s.id == wrong.id)
      return {{wrong.is_gradient ? s.name.substr(0, s.name.rfind(".grad")) : wrong.name}, {s.name}};
    inside[s.id] = &s;
  }
  std::set<ValueId> seen;
  std::set<ValueId> crossed, reached;
  std::vector<ValueId> todo{wrong.id};
  while (!todo.empty()) {
    const ValueId id = todo.back();
    todo.pop_back();
    if (!seen.insert(id).second) continue;
    const Op& op = program.graph.op(id);
    if (id != wrong.id && inside.contains(id)) {
      reached.insert(id);
      continue;
    }
    // Values that the backward pass takes from the forward pass are inside: else one of them would
    // come first.
    if (wrong.is_gradient && op.phase == Phase::kForward) continue;
    if (!op.operands.empty()) crossed.insert(id);
    todo.insert(todo.end(), op.operands.begin(), op.operands.end());
  }
  Track track;
  for (const ValueId id : crossed) {
    const std::string layer = layer_of_op(program, program.graph.op(id).name);
    if (std::ranges::find(track.layers, layer) == track.layers.end()) track.layers.push_back(layer);
  }
  // Gradients from several readers are added in an op with the name of what they read.
  const bool added = wrong.is_gradient && wrong.of_layer && track.layers.size() > 1;
  if (added) std::erase(track.layers, wrong.name.substr(0, wrong.name.rfind(".grad")));
  for (const ValueId id : reached) {
    if (!wrong.is_gradient || inside[id]->is_gradient) track.from.push_back(inside[id]->name);
  }
  return track;
}

double factor_of(const std::vector<float>& x, const std::vector<float>& expected) {
  double product = 0, squares = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    product += static_cast<double>(x[i]) * static_cast<double>(expected[i]);
    squares += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return squares > 0 ? product / squares : 0;
}

std::shared_ptr<const std::vector<float>> multiplied(double factor, const std::vector<float>& x) {
  std::vector<float> out(x);
  for (float& v : out) v = static_cast<float>(factor * static_cast<double>(v));
  return std::make_shared<const std::vector<float>>(std::move(out));
}

// "1.01 times what was expected" if that factor brings the value within the range of conforming
// engines.
std::string signature(const std::vector<float>& x, const Envelope::Around& around, double allowed) {
  if (!std::ranges::all_of(x, [](float v) { return std::isfinite(v); })) return "NaN or Inf";
  if (norm2(x) == 0) return "zero";
  const double factor = factor_of(x, *around.mean);
  const bool near = x.size() > 1 && gap2(x, *multiplied(factor, *around.mean)) <=
                                        allowed * std::max(1.0, std::fabs(factor));
  return near ? fmt::format("{:.6g} times what was expected", factor) : "";
}

// Whether anything but the update went wrong.
bool computed_wrong(const Program& program, const Identification& match, int64_t step) {
  return std::ranges::any_of(match.outside, [&](const TensorMismatch& m) {
    return m.step == step && !m.all_steps &&
           (!m.is_state || program.state[static_cast<size_t>(program.state_index(m.tensor))].role ==
                               StateRole::kStatistic);
  });
}

}  // namespace

Result<std::optional<LayerFault>> StepsJudge::layer_fault(const Identification& match,
                                                          const std::vector<ProbedState>& states) {
  std::optional<LayerFault> none;
  if (!declared_.activations || match.outcome != Identification::Outcome::kUnexplained ||
      match.outside.empty() || match.in_its_numbers)
    return none;
  const int64_t step = match.outside.front().step;
  const auto from = std::ranges::find(states, step, &ProbedState::step);
  if (from == states.end() || !computed_wrong(asked_, match, step)) return none;

  // Repeats the subject's step with the outputs of its layers shown.
  const Program asked = with_layers_shown(asked_);
  if (asked.outputs.size() == asked_.outputs.size()) return none;
  TWINRUN_ASSIGN(const auto engine, engine_.prepare(asked));
  TWINRUN_ASSIGN(StepResult again, one_step(e_, *engine, step, from->states));
  std::map<std::string, size_t> given;
  bool any = false;
  for (const Shown& s : shown_by(asked_, asked)) {
    const auto has = [&](const std::vector<Tensor>& of) { return of[s.index].valid(); };
    if (!std::ranges::all_of(again.outputs, has)) continue;
    given[s.name] = s.index;
    any = any || s.of_layer;
  }
  if (!any) return none;

  // Conforming engines of the program that the script was found to run.
  const std::vector<Explanation::Part> parts =
      match.beside ? match.beside->parts : std::vector<Explanation::Part>();
  TWINRUN_ASSIGN(const ChangedProgram changed, changed_by(e_, asked_.sharding, parts));
  const Experiment& feed = changed.experiment ? *changed.experiment : e_;
  const Program step_expected = parts.empty() ? asked_ : step_of(feed, changed.sharding);
  const Program expected = with_layers_shown(step_expected);
  std::vector<Shown> shown = shown_by(step_expected, expected);
  std::erase_if(shown, [&](const Shown& s) { return !given.contains(s.name); });
  const std::vector<Compared> tensors =
      compared(expected, shown, o_.max_elements / kOfBudget / asked_.sharding.cores);
  std::vector<Compared> own = tensors;
  for (Compared& c : own) c.index = given.at(c.tensor);
  const std::vector<ProbedState> start{{step, from->states}};
  TWINRUN_ASSIGN(Observed subject,
                 observe(e_, nullptr, asked_, own,
                         {{step, from->states, std::move(again.after), std::move(again.outputs)}}));
  std::vector<Observed> conforming;
  for (int k = 1; k <= o_.many; ++k) {
    const auto number = static_cast<uint64_t>(k);
    const auto backend =
        member_of(match.held, number, declared_, backend_options(e_.scenario, o_.threads));
    TWINRUN_ASSIGN(const auto member, backend->prepare(expected));
    TWINRUN_ASSIGN(Observed o, observe(feed, member.get(), asked_, tensors, start, number,
                                       weight_move(asked_, match.held)));
    conforming.push_back(std::move(o));
  }
  const Envelope around = envelope_of(conforming);
  const auto place = [&](const Distance& d) -> const Shown& {
    return shown[d.value / subject.replicas];
  };
  double threshold = 0;
  const auto outside = [&](const Distance& d) { return d.ratio > threshold && beyond(d); };
  const auto first_outside = [&]() -> std::optional<Distance> {
    const std::vector<Distance> found = distances(subject, around);
    threshold =
        student_limit(conforming.size(), o_.false_alarm / static_cast<double>(found.size()));
    // A value with a far smaller ratio than the largest is not the origin: what goes wrong in one
    // value is as large a share of the next.
    constexpr double kOfLargest = 1e-3;
    double largest = 0;
    for (const Distance& d : found) largest = std::max(largest, outside(d) ? d.ratio : 0);
    const auto first = std::ranges::find_if(
        found, [&](const Distance& d) { return outside(d) && d.ratio >= kOfLargest * largest; });
    return first == found.end() ? std::nullopt : std::optional(*first);
  };
  std::optional<Distance> first = first_outside();
  // A script that multiplies its loss before the backward pass, and divides gradients by the same
  // factor after it (float16), shows all gradients of layers with that factor, from the last
  // layer's on. It is removed where some gradient of a parameter, which follows from them, is
  // inside.
  const auto last_layers =
      std::ranges::find_if(shown, [](const Shown& s) { return s.of_layer && s.is_gradient; });
  if (first && last_layers != shown.end() && place(*first).name == last_layers->name) {
    const std::vector<Distance> found = distances(subject, around);
    const bool right = std::ranges::any_of(found, [&](const Distance& d) {
      return !place(d).of_layer && place(d).is_gradient && d.look == Look::kDistance && !outside(d);
    });
    const double unit =
        factor_of(*subject.values[first->value].data, *around.values[first->value].mean);
    if (right && unit > 0 && std::isfinite(unit)) {
      const Observed as_shown = subject;
      for (size_t v = 0; v < subject.values.size(); ++v) {
        const Shown& s = shown[v / subject.replicas];
        if (s.of_layer && s.is_gradient)
          subject.values[v].data = multiplied(1 / unit, *as_shown.values[v].data);
      }
      const std::optional<Distance> next = first_outside();
      if (next && place(*next).id <= place(*first).id) {
        subject = as_shown;  // it is no such factor
      } else {
        first = next;
      }
    }
  }
  if (!first) return none;

  LayerFault fault;
  const Shown& wrong = place(*first);
  if (!match.undeclared.empty() && (wrong.of_layer || wrong.is_gradient)) return none;
  // A parameter's gradient that was not the first outside in the run is wrong in this repetition
  // only.
  if (!wrong.of_layer && wrong.is_gradient && wrong.name != match.outside.front().tensor)
    return none;
  const Track track = track_to(step_expected, wrong, shown);
  const Envelope::Around& there = around.values[first->value];
  const double size = norm2(*there.mean);
  fault.step = step;
  fault.replica = static_cast<int>(first->value % subject.replicas);
  fault.value = wrong.name;
  fault.of_layer = wrong.of_layer;
  fault.backward = wrong.is_gradient;
  fault.layers = track.layers;
  fault.from = track.from;
  fault.ratio = first->ratio;
  fault.threshold = threshold;
  fault.relative = first->look != Look::kDistance ? std::fabs(first->distance)
                   : size > 0                     ? first->distance / size
                                                  : INFINITY;
  fault.pattern = signature(*subject.values[first->value].data, there,
                            threshold * there.looks[static_cast<size_t>(Look::kDistance)].spread);
  fault.shown = std::ranges::count_if(shown, &Shown::of_layer);
  return std::optional(fault);
}

}  // namespace twinrun
