// Examines a Function of the script by itself.
#include "harness/trace/function_check.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>

#include "backends/aten/definitions.h"
#include "harness/trace/again.h"
#include "harness/trace/backward_graph.h"
#include "harness/trace/slope.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Array;
using aten::Call;
using aten::TensorView;
using aten::Undefined;

double length(const Array& a) {
  double squares = 0;
  for (const double x : a.value) squares += x * x;
  return std::sqrt(squares);
}

// A call that may be one of a Function's forward pass.
bool is_within(const TraceFile& trace, int64_t i) {
  const Call& c = trace.calls[static_cast<size_t>(i)];
  return c.composed || (c.without_gradient && c.node.empty() && !c.optimizer);
}

// "file:12 in forward: y = ..." gives the file and the line.
std::pair<std::string_view, int64_t> file_and_line(std::string_view frame) {
  const std::string_view place = frame.substr(0, frame.find(" in "));
  const size_t colon = place.rfind(':');
  int64_t line = 0;
  if (colon != std::string_view::npos)
    for (const char c : place.substr(colon + 1)) line = 10 * line + (c - '0');
  return {place.substr(0, colon), line};
}

// The Function in whose forward pass a call is made: of several within each other the outermost,
// which is the one that autograd follows. With the lines that apply it, which tell the calls of one
// use from those of the next.
struct Maker {
  const ScriptFunction* function = nullptr;
  std::string_view applied;
  bool operator==(const Maker&) const = default;
};
Maker maker_of(const TraceFile& trace, int64_t call) {
  const std::string_view place = trace.calls[static_cast<size_t>(call)].place;
  Maker found;
  for (size_t begin = 0; begin < place.size();) {
    const size_t end = std::min(place.find('\n', begin), place.size());
    const auto [file, line] = file_and_line(place.substr(begin, end - begin));
    for (const ScriptFunction& f : trace.functions)
      if (f.file == file && f.first <= line && line <= f.last) found = {&f, place.substr(end)};
    begin = end + 1;
  }
  return found;
}

// The last call of the forward pass of a Function, of which `first` is the first.
int64_t last_of(const TraceFile& trace, int64_t first) {
  const Maker made_by = maker_of(trace, first);
  int64_t last = first;
  while (last + 1 < static_cast<int64_t>(trace.calls.size()) && is_within(trace, last + 1) &&
         maker_of(trace, last + 1) == made_by)
    ++last;
  return last;
}

// Finds the uses of Functions.
class Uses {
 public:
  Uses(const TraceFile& trace, int64_t step, const Pass& pass)
      : trace_(trace), step_(step), pass_(pass), graph_(trace, step, pass), leaves_(pass.leaves()) {
    for (const BackwardNode& node : graph_.nodes()) {
      start_of_node_.push_back(node.function == nullptr ? -1 : start_of(node));
      if (start_of_node_.back() >= 0) starts_.insert(start_of_node_.back());
    }
    if (starts_.empty()) return;
    readers_.resize(graph_.nodes().size());
    for (const Contribution& c : pass.contributions)
      if (const int64_t k = graph_.maker(c.view->storage, c.call); k >= 0)
        readers_[static_cast<size_t>(k)].leaves.emplace_back(c.leaf, c.view);
    for (size_t reader = 0; reader < graph_.nodes().size(); ++reader) {
      for (const auto& [view, call] : graph_.given_to(reader))
        if (const int64_t k = graph_.maker(view->storage, graph_.nodes()[reader].first); k >= 0)
          readers_[static_cast<size_t>(k)].nodes.emplace_back(reader, view);
    }
  }

  std::vector<FunctionUse> all() {
    std::vector<FunctionUse> out;
    for (size_t k = 0; k < graph_.nodes().size(); ++k)
      if (graph_.nodes()[k].function != nullptr) out.push_back(heard(k));
    for (const ScriptFunction* f : graph_.silent()) silent(*f, out);
    return out;
  }

 private:
  // The first call of the forward pass of a node, -1 if it is not known. A node is made before its
  // forward pass runs: where that begins with another Function, the last call before it for which
  // autograd made a node is recorded as the first.
  int64_t start_of(const BackwardNode& node) const {
    for (int64_t i = std::max(node.forward, step_); i < pass_.begin; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      if (const ScriptFunction* f = maker_of(trace_, i).function)
        return f == node.function ? i : -1;
      const bool makes_node =
          base_name(call.op) != "aten.detach" && is_followed(call, read_by(call));
      if (i > node.forward && makes_node) return -1;
    }
    return -1;
  }
  FunctionUse range(const ScriptFunction& function, int64_t first) const {
    FunctionUse use;
    use.function = &function;
    if (first < step_ || first >= pass_.begin) return use;
    use.first = first;
    use.last = last_of(trace_, first);
    const auto next = starts_.upper_bound(first);
    if (next != starts_.end()) use.last = std::min(use.last, *next - 1);
    return use;
  }

  FunctionUse heard(size_t k) const {
    const BackwardNode& node = graph_.nodes()[k];
    FunctionUse use = range(*node.function, start_of_node_[k]);
    // One that runs a backward pass of its own within its own is in several parts.
    const auto is_part = [&](const BackwardNode& n) {
      return n.function == node.function && n.forward == node.forward;
    };
    if (!use.is_found() || std::ranges::count_if(graph_.nodes(), is_part) > 1) return use;
    use.begin = node.first;
    use.end = node.last + 1;
    const auto given = graph_.given_to(k);
    for (const TensorView* output : results(use)) {
      const auto fits = [&](const auto& g) { return g.first->dims == output->dims; };
      const auto g = std::ranges::find_if(given, fits);
      if (g != given.end()) use.outputs.emplace_back(output, g->first);
    }
    // Two results of one shape: which gradient is whose is not known.
    std::set<aten::Dims> shapes;
    for (const auto& [output, gradient] : use.outputs) shapes.insert(output->dims);
    if (shapes.size() < use.outputs.size()) use.outputs.clear();
    for (const auto& [leaf, view] : readers_[k].leaves) add_input(use, leaf, *view);
    for (const auto& [reader, view] : readers_[k].nodes) add_read_by(use, reader, *view, 0);
    // What it gives is all understood, so an operand with a gradient that is given none was given None.
    std::set<uint64_t> given_for, gives;
    for (const auto& [input, gradient] : use.inputs) {
      given_for.insert(input->storage);
      gives.insert(gradient->storage);
    }
    const auto is_understood = [&](const auto& pair) {
      return gives.contains(pair.second->storage);
    };
    if (use.is_certain && !use.inputs.empty() &&
        std::ranges::all_of(readers_[k].leaves, is_understood) &&
        std::ranges::all_of(readers_[k].nodes, is_understood))
      for (const TensorView* t : operands(use))
        if (given_for.insert(t->storage).second) use.inputs.emplace_back(t, nullptr);
    return use;
  }

  // The input whose gradient another node reads.
  void add_read_by(FunctionUse& use, size_t reader, const TensorView& gradient, int depth) const {
    constexpr int kMostSums = 16;
    const BackwardNode& node = graph_.nodes()[reader];
    if (node.name.empty() && depth < kMostSums) {  // a sum of gradients: who reads it?
      for (const auto& [leaf, view] : readers_[reader].leaves) add_input(use, leaf, gradient);
      for (const auto& [next, view] : readers_[reader].nodes)
        add_read_by(use, next, gradient, depth + 1);
      return;
    }
    if (node.output != nullptr) return add_input(use, node.output->storage, gradient);
    if (node.function == nullptr) return add_input(use, 0, gradient);  // of a view
    for (const TensorView* t : results(range(*node.function, start_of_node_[reader])))
      add_input(use, t->storage, gradient);
  }

  // If the forward pass reads that memory. A node that passes gradients on as they are makes no call:
  // then it is the only operand of that shape.
  void add_input(FunctionUse& use, uint64_t storage, const TensorView& gradient) const {
    for (const auto& [input, known] : use.inputs)
      if (known->storage == gradient.storage) return;
    const TensorView* only = nullptr;
    bool several = false;
    for (const TensorView* t : operands(use)) {
      if (t->dims != gradient.dims) continue;
      if (t->storage == storage) return use.inputs.emplace_back(t, &gradient), void();
      several = only != nullptr;
      only = t;
    }
    if (only != nullptr && !several) use.inputs.emplace_back(only, &gradient);
    if (only == nullptr) add_reshaped(use, storage, gradient);
  }
  // A view that a forward pass makes of its operand, as x.view(-1, n), has no mark that it has a
  // gradient: it is the only operand of that many elements. The order of its elements is taken to
  // be that of the gradient.
  void add_reshaped(FunctionUse& use, uint64_t storage, const TensorView& gradient) const {
    const TensorView* only = nullptr;
    for (const TensorView* t : operands(use, false)) {
      const bool is_other_weight = t->storage != storage && leaves_.contains(t->storage);
      if (is_other_weight || t->elements() != gradient.elements()) continue;
      if (only != nullptr) return;
      only = t;
    }
    if (only == nullptr || !only->is_dense()) return;
    use.inputs.emplace_back(only, &gradient);
    use.is_certain = false;
  }
  // What the forward pass is given; `marked`: that has a gradient as far as is known.
  std::vector<const TensorView*> operands(const FunctionUse& use, bool marked = true) const {
    std::vector<const TensorView*> out;
    std::set<uint64_t> seen;
    for (int64_t i = use.first; i <= use.last; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      const auto read = read_by(call);
      for (const TensorView* t : read)
        if (aten::is_float(t->element) && (t->requires_gradient || !marked) &&
            seen.insert(t->storage).second)
          out.push_back(t);
      for (const TensorView* t : computed_by(call, read)) seen.insert(t->storage);
    }
    return out;
  }

  // What the forward pass computes and autograd reads after it.
  std::vector<const TensorView*> results(const FunctionUse& use) const {
    std::map<uint64_t, const TensorView*> made;
    for (int64_t i = use.first; use.is_found() && i <= use.last; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      if (!is_work(call)) continue;
      for (const TensorView* t : computed_by(call, read_by(call)))
        if (aten::is_float(t->element)) made[t->storage] = t;
    }
    std::vector<const TensorView*> out;
    for (int64_t i = use.last + 1; i < pass_.begin && !made.empty(); ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      for (const TensorView* t : read_by(call)) {
        const auto at = made.find(t->storage);
        if (at == made.end()) continue;
        // As it is read there: within, a view may have made it.
        if (t->requires_gradient || starts_.contains(i))
          out.push_back(t->requires_gradient ? t : at->second);
        made.erase(at);
      }
    }
    return out;
  }

  // The uses of a Function whose backward pass makes no call.
  void silent(const ScriptFunction& function, std::vector<FunctionUse>& out) const {
    const size_t before = out.size();
    for (int64_t i = step_; i < pass_.begin; ++i) {
      if (!is_within(trace_, i) || maker_of(trace_, i).function != &function) continue;
      FunctionUse use = range(function, i);
      i = use.last;
      const auto given = results(use);
      if (given.size() == 1) {
        use.outputs.emplace_back(given[0], nullptr);
        for (const TensorView* t : operands(use))
          if (t->dims == given[0]->dims && use.inputs.empty()) use.inputs.emplace_back(t, nullptr);
      }
      out.push_back(std::move(use));
    }
    if (out.size() == before) {
      FunctionUse unknown;
      unknown.function = &function;
      out.push_back(unknown);
    }
  }

  const TraceFile& trace_;
  int64_t step_;
  const Pass& pass_;
  BackwardGraph graph_;
  std::set<uint64_t> leaves_;
  // By node: the first call of its forward pass, -1: not known.
  std::vector<int64_t> start_of_node_;
  std::set<int64_t> starts_;  // of forward passes whose backward pass makes calls
  // Who reads what a node gives: weights, by their storages, and other nodes.
  struct Readers {
    std::vector<std::pair<uint64_t, const TensorView*>> leaves;
    std::vector<std::pair<size_t, const TensorView*>> nodes;
  };
  std::vector<Readers> readers_;  // by node
};

// Whether what a Function gives is computed from an operand by way of a rounding or a sign, whose slope
// is 0 wherever it has one: any gradient of it is chosen, also where a scale that is computed from the
// same operand has a slope.
bool rounds_between(const TraceFile& trace, const FunctionUse& use) {
  static constexpr std::array<std::string_view, 9> kRoundings = {
      "aten.round", "aten.floor", "aten.ceil",      "aten.trunc",    "aten.fix",
      "aten.sign",  "aten.sgn",   "aten.heaviside", "aten.bernoulli"};
  std::unordered_set<uint64_t> from, rounded;
  for (const auto& [input, gradient] : use.inputs) from.insert(input->storage);
  for (int64_t i = use.first; i <= use.last; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    if (!is_work(call)) continue;
    const auto read = read_by(call);
    const auto reads = [&](const std::unordered_set<uint64_t>& of) {
      return std::ranges::any_of(read,
                                 [&](const TensorView* t) { return of.contains(t->storage); });
    };
    const bool is_rounding = std::ranges::find(kRoundings, base_name(call.op)) != kRoundings.end();
    for (const TensorView* t : computed_by(call, read)) {
      const bool to_integers =
          aten::is_integer(t->element) && base_name(call.op) == "aten._to_copy";
      if (reads(rounded) || (reads(from) && (is_rounding || to_integers))) {
        rounded.insert(t->storage);
      } else if (reads(from)) {
        from.insert(t->storage);
      }
    }
  }
  return std::ranges::any_of(
      use.outputs, [&](const auto& pair) { return rounded.contains(pair.first->storage); });
}

class Examination {
 public:
  Examination(const TraceFile& trace, const FunctionUse& use, double least, ThreadPool* pool,
              const StopFlag* stop)
      : use_(use),
        least_(least),
        stop_(stop),
        again_(trace, use.first, use.last + 1, storages(use.inputs, false), pool,
               Again::What::kFunction) {
    for (const auto& [input, gradient] : use.inputs)
      sizes_.push_back(length(aten::array_of(*input, pool)));
    if (use.passes_gradients_on()) {
      given_.push_back(signs(use.outputs[0].first->dims, 1));
      gradients_ = given_;
      return;
    }
    for (const auto& [output, given] : use.outputs) given_.push_back(aten::array_of(*given, pool));
    Again backward(trace, use.begin, use.end, storages(use.outputs, true), pool,
                   Again::What::kFunction);
    backward.run(use.end, {}, 0, -1, {});
    for (const auto& [input, gradient] : use.inputs)
      gradients_.push_back(gradient != nullptr ? backward.read(*gradient)
                                               : aten::empty_array(input->dims, true));
  }

  // `rounds`: rounds_between().
  FunctionState state(const ForwardPass& forward, bool rounds) {
    bool wrong = false, flat = false, certain = true;
    for (size_t i = 0; i < gradients_.size(); ++i) {
      const double size = length(gradients_[i]);
      if (!std::isfinite(size)) return FunctionState::kUnknown;
      const auto n = static_cast<double>(std::max<int64_t>(gradients_[i].size(), 1));
      const double each = 1 / std::sqrt(n);
      const Array random = signs(gradients_[i].dims, each);
      double expected = 0;
      for (size_t k = 0; k < random.value.size(); ++k)
        expected += gradients_[i].value[k] * random.value[k];
      const Slope across = slope(i, random, 1);
      const Slope along = size > 0 ? slope(i, gradients_[i], 1 / size) : Slope{};
      const double scale = std::max(size, std::fabs(across.value));
      if (scale == 0) continue;
      for (const auto& [s, claimed, of] :
           {std::tuple(along, size, size), std::tuple(across, expected, scale * each)}) {
        const double difference = std::fabs(s.value - claimed);
        if (difference < least_ * of) continue;
        if (difference > kCertain * s.slack) {
          wrong = true;
        } else {
          certain = false;
        }
      }
      // Ties make a slope uncertain, not flat: the largest of two equal numbers moves with either.
      const auto is_flat = [&](const Slope& s) {
        return std::fabs(s.value) + s.slack <= least_ * size;
      };
      flat = flat || (size > 0 && ((is_flat(along) && is_flat(across)) || mostly_stays(i, random) ||
                                   (rounds && std::fabs(along.value) < size / 2)));
    }
    if (!wrong && certain) return FunctionState::kRight;
    if (forward.passes_on || (forward.has_steps && flat)) return FunctionState::kMeant;
    return wrong && use_.is_certain ? FunctionState::kWrong : FunctionState::kUnknown;
  }

 private:
  static std::unordered_set<uint64_t> storages(const std::vector<FunctionUse::Pair>& pairs,
                                               bool second) {
    std::unordered_set<uint64_t> out;
    for (const auto& [value, gradient] : pairs) out.insert((second ? gradient : value)->storage);
    return out;
  }

  Array signs(const aten::Dims& dims, double size) {
    Array out = aten::empty_array(dims, true);
    for (double& x : out.value) x = (random_() & 1) != 0 ? size : -size;
    return out;
  }

  // What the Function gives, weighed by the gradient of it.
  double weighed(const Moves& moves, double by) {
    again_.run(use_.last + 1, moves, by, -1, {});
    double sum = 0;
    for (size_t k = 0; k < use_.outputs.size(); ++k) {
      const Array found = again_.read(*use_.outputs[k].first);
      for (size_t i = 0; i < found.value.size(); ++i) sum += found.value[i] * given_[k].value[i];
    }
    if (!std::isfinite(sum)) throw Undefined("its result is not finite");
    return sum;
  }

  // Whether most numbers that it gives stay as they are where an operand moves a little.
  bool mostly_stays(size_t input, const Array& direction) {
    Moves moves;
    if (!again_.add(*use_.inputs[input].first, direction, 1, moves)) return false;
    std::vector<Array> here;
    again_.run(use_.last + 1, {}, 0, -1, {});
    for (const auto& [output, given] : use_.outputs) here.push_back(again_.read(*output));
    again_.run(use_.last + 1, moves, kFirstStep / 8 * std::max(sizes_[input], 1e-3), -1, {});
    int64_t moved = 0, all = 0;
    for (size_t k = 0; k < here.size(); ++k) {
      const Array there = again_.read(*use_.outputs[k].first);
      for (size_t i = 0; i < there.value.size(); ++i, ++all)
        moved += there.value[i] != here[k].value[i] ? 1 : 0;
    }
    return 2 * moved < all;
  }

  Slope slope(size_t input, const Array& direction, double by) {
    if (stop_ != nullptr && stop_->load()) throw Undefined("it was interrupted");
    Moves moves;
    if (!again_.add(*use_.inputs[input].first, direction, by, moves))
      throw Undefined("where an operand lies is not known");
    return slope_of([&](double step) { return weighed(moves, step); }, weighed({}, 0),
                    sizes_[input]);
  }

  const FunctionUse& use_;
  double least_;
  const StopFlag* stop_;
  Again again_;
  std::mt19937_64 random_{3};
  std::vector<Array> gradients_, given_;
  std::vector<double> sizes_;
};

}  // namespace

std::vector<FunctionUse> uses_of(const TraceFile& trace, int64_t step, const Pass& pass) {
  if (trace.functions.empty()) return {};
  return Uses(trace, step, pass).all();
}

ForwardPass forward_pass(const TraceFile& trace, int64_t first, int64_t last) {
  static constexpr std::array<std::string_view, 4> kCopies = {"aten.clone", "aten.copy",
                                                              "aten.empty_like", "aten.alias"};
  static constexpr std::array<std::string_view, 21> kSteps = {
      "aten.round",     "aten.floor",        "aten.ceil", "aten.trunc",  "aten.fix",
      "aten.sign",      "aten.sgn",          "aten.gt",   "aten.ge",     "aten.lt",
      "aten.le",        "aten.bernoulli",    "aten.eq",   "aten.argmax", "aten.argmin",
      "aten.heaviside", "aten.searchsorted", "aten.min",  "aten.max",    "aten.topk",
      "aten.sort"};
  // Views that hold other elements, or the same in another order: whose gradient is known.
  static constexpr std::array<std::string_view, 14> kOther = {
      "aten.t",      "aten.transpose", "aten.permute", "aten.as_strided", "aten.expand",
      "aten.slice",  "aten.select",    "aten.split",   "aten.unbind",     "aten.split_with_sizes",
      "aten.unfold", "aten.diagonal",  "aten.chunk",   "aten.narrow"};
  ForwardPass out;
  for (int64_t i = first; i <= last; ++i) {
    const Call& c = trace.calls[static_cast<size_t>(i)];
    if (!is_work(c)) continue;
    const std::string name = base_name(c.op);
    out.passes_on = out.passes_on && std::ranges::find(kOther, name) == kOther.end();
    out.has_steps = out.has_steps || std::ranges::find(kSteps, name) != kSteps.end();
    out.passes_on = out.passes_on && (computed_by(c, read_by(c)).empty() ||
                                      std::ranges::find(kCopies, name) != kCopies.end());
  }
  return out;
}

FunctionState examine(const TraceFile& trace, const FunctionUse& use, double least,
                      ThreadPool* pool, const StopFlag* stop) {
  if (!use.is_found()) return FunctionState::kUnknown;
  const ForwardPass forward = forward_pass(trace, use.first, use.last);
  if (forward.passes_on && use.passes_gradients_on()) return FunctionState::kRight;
  if (use.inputs.empty() || use.outputs.empty()) return FunctionState::kUnknown;
  try {
    return Examination(trace, use, least, pool, stop).state(forward, rounds_between(trace, use));
  } catch (const Undefined&) {
    return FunctionState::kUnknown;
  }
}

bool is_allowed(const std::vector<std::string>& allowed, std::string_view name,
                std::string_view place) {
  const auto last = [](std::string_view text, char after) {
    const size_t at = text.rfind(after);
    return at == text.npos ? text : text.substr(at + 1);
  };
  // "train.py:8 in scale: return 2 * g"
  std::string_view function = place.substr(0, place.find(": "));
  function = last(function.substr(0, function.find('\n')), ' ');
  return std::ranges::any_of(allowed, [&](const std::string& a) {
    return name.empty() ? a == function : a == name || a == last(name, '.');
  });
}

std::vector<std::string> allowed_in_vain(const TraceFile& trace) {
  std::vector<std::string> out;
  for (const std::string& name : trace.allowed) {
    const std::vector<std::string> only = {name};
    const bool is_there =
        std::ranges::any_of(
            trace.functions,
            [&](const ScriptFunction& f) { return is_allowed(only, f.name, ""); }) ||
        std::ranges::any_of(trace.calls, [&](const aten::Call& c) {
          return c.node.starts_with("a hook of ") && is_allowed(only, "", c.place);
        });
    if (!is_there) out.push_back(name);
  }
  return out;
}

}  // namespace twinrun
