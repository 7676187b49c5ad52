// Holds the recorded gradient against differences of the loss, in binary64.
#include "harness/trace/gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "backends/aten/definitions.h"
#include "harness/trace/again.h"
#include "harness/trace/backward_graph.h"
#include "harness/trace/backward_passes.h"
#include "harness/trace/function_check.h"
#include "harness/trace/moves.h"
#include "harness/trace/slope.h"
#include "harness/trace/step_checks.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Array;
using aten::Call;
using aten::TensorView;
using aten::Undefined;
using aten::Value;

// Below a thousandth of the gradient nothing is told: there, a branch that the step's own rounding
// decided (the place of a maximum) may be another one in binary64.
constexpr double kLeast = GradientCheck::kLeast;
// The same where a type of half precision decides: two numbers that differ by less than 2^-8 are
// equal there, so that of each 16 decisions between close ones one may be another.
constexpr double kLeastOfHalf = 0x1p-4;
// Right gradients of float32 differ by less: from here on each Function is examined by itself.
constexpr double kSmall = 0x1p-16;
// Right gradients of half precision differ by less (0.003 were seen): from here on one of a step with
// a Function that cannot be examined by itself is not said to be right.
constexpr double kOfUnexamined = 0x1p-7;

// In binary64.
struct NodeValues {
  Array gradient, output;
};

class Check {
 public:
  Check(const TraceFile& trace, const Step& step, std::vector<Pass> group, ThreadPool* pool,
        const StopFlag* stop)
      : trace_(trace),
        group_(std::move(group)),
        pool_(pool),
        stop_(stop),
        again_(trace, step.begin, step.end, leaves_of(group_), pool),
        step_(step) {}

  void run(GradientCheck& out) {
    for (const ForwardUse& use : again_.uses())
      if (use.is_opaque)
        throw Undefined(fmt::format("no recorded call computes what {} gives", *use.name));
    find_leaves();
    const double worst = measured();
    out.worst = std::max(out.worst, worst);
    if (worst < least_) {
      if (worst >= kSmall && is_a_function_wrong(out)) return;
      // Half precision leaves room for one that could not be examined.
      if (worst >= kOfUnexamined && !all_examined_) {
        out.is_wrong = true;
        return;
      }
      for (const Pass& pass : group_)
        for (const FunctionUse& use : uses_of(trace_, step_.begin, pass))
          if (use.is_found) out.right.push_back(use.function->name);
      return;
    }
    if (step_.has_regions) return wrong_with_regions(out);
    out.is_wrong = true;
    out.right.clear();
    try {
      locate(out);
    } catch (const Undefined&) {  // then it is not known where
      out.node.clear();
    }
  }

 private:
  // What a region holds fixed (detach) its graph does not tell, so that nothing of it is accused. It
  // counts where a Function of the script is part of it.
  void wrong_with_regions(GradientCheck& out) {
    if (is_a_function_wrong(out)) return;
    if (std::ranges::none_of(trace_.functions, [&](const ScriptFunction& f) {
          return f.is_compiled && !is_allowed(trace_.allowed, f.name, "");
        }))
      throw Undefined("regions that torch.compile made do not tell what they hold fixed");
    out.is_wrong = true;
    out.right.clear();
  }

  static std::unordered_set<uint64_t> leaves_of(const std::vector<Pass>& group) {
    const std::set<uint64_t> all = group.front().leaves();
    return {all.begin(), all.end()};
  }
  int64_t losses_end() const {
    int64_t last = 0;
    for (const Pass& pass : group_) last = std::max(last, std::ranges::max(pass.seeds));
    return last + 1;
  }

  // How far the gradient is from the slopes of the loss along it, and along random signs.
  double measured() {
    gradient();
    const double size = norm_of(gradient_);
    if (!std::isfinite(size)) throw Undefined("its gradient is not finite");
    if (size == 0) throw Undefined("its gradient is 0");
    const double along = off(scaled(gradient_, 1 / size), size);
    const Moves random = random_direction(size);
    double squares = 0;
    for (const auto& [storage, cells] : random) {
      const std::vector<double>& g = gradient_.at(storage);
      for (size_t i = 0; i < std::min(g.size(), cells.size()); ++i)
        squares += g[i] * g[i] * cells[i] * cells[i];
    }
    return std::max(along, off(random, std::sqrt(squares)));
  }

  // The view of each leaf as a whole.
  void find_leaves() {
    for (const Contribution& c : group_.front().contributions) leaves_[c.leaf] = nullptr;
    for (const Pass& pass : group_)
      for (size_t i = 0; i < pass.seeds.size(); ++i)
        losses_[pass.seeds[i]] = {pass.losses[i], pass.given};
    const int64_t end = losses_end();
    for (int64_t i = step_.begin; i < end; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      for (const TensorView* t : read_by(call)) {
        // Not a view of it, and as it is last: its first values may be given here.
        const auto at = leaves_.find(t->storage);
        if (at == leaves_.end() || !t->requires_gradient) continue;
        if (at->second != nullptr && at->second->parameter && !t->parameter) continue;
        const auto is_it = [&](const TensorView& w) { return w.storage == t->storage; };
        const auto& all = group_.front().contributions;
        const auto c = std::ranges::find(all, t->storage, &Contribution::leaf);
        if (c->view->dims == t->dims && std::ranges::none_of(call.written, is_it)) at->second = t;
      }
    }
    double squares = 0;
    for (const auto& [storage, view] : leaves_) {
      if (view == nullptr || view->data == nullptr)
        throw Undefined("a weight is not read as a whole");
      for (const double x : aten::array_of(*view, nullptr).value) squares += x * x;
    }
    weights_ = std::sqrt(squares);
  }

  // What the recorded backward calls mean.
  void gradient() {
    std::vector<uint64_t> storages;
    for (const Pass& pass : group_) {
      for (const Contribution& c : pass.contributions) storages.push_back(c.view->storage);
      for (const TensorView* t : pass.losses) storages.push_back(t->storage);
    }
    again_.need(storages, group_.back().end);
    std::map<int64_t, const Contribution*> at;
    for (const Pass& pass : group_)
      for (const Contribution& c : pass.contributions) at[c.call] = &c;
    gradient_.clear();
    for (const auto& [storage, view] : leaves_) gradient_[storage];  // some may be empty
    again_.run(group_.back().end, {}, 0, -1, [&](const Call& call) {
      check_stop();
      const auto c = at.find(call.index);
      if (c == at.end()) return;
      if (!again_.add(*leaves_.at(c->second->leaf), again_.read(*c->second->view), 1, gradient_))
        throw Undefined("where a weight lies is not known");
    });
    need_losses();
  }
  void need_losses() {
    std::vector<uint64_t> storages;
    for (const Pass& pass : group_)
      for (const TensorView* t : pass.losses) storages.push_back(t->storage);
    again_.need(storages, losses_end());
  }

  double loss(const Moves& moves, double by, int64_t at) {
    double sum = 0;
    again_.run(losses_end(), moves, by, at, [&](const Call& call) {
      check_stop();
      const auto seed = losses_.find(call.index);
      if (seed == losses_.end()) return;
      const auto [of, given] = seed->second;
      const Array is = again_.read(*of);
      if (given == nullptr) {
        sum += is.value[0];
        return;
      }
      const Array weights = aten::array_of(*given, nullptr);
      for (size_t k = 0; k < is.value.size(); ++k) sum += is.value[k] * weights.value[k];
    });
    if (!std::isfinite(sum)) throw Undefined("its loss is not finite");
    return sum;
  }
  // `size`: the length of what is moved.
  Slope slope(const Moves& direction, double size, int64_t at = -1) {
    if (!here_) here_ = loss({}, 0, -1);
    return slope_of([&](double by) { return loss(direction, by, at); }, *here_, size);
  }
  // How far the slope is from the gradient's, of `scale`; 0 where that is not certain.
  double off(const Moves& direction, double scale) {
    const Slope s = slope(direction, weights_);
    return relative(s, dot(gradient_, direction), scale);
  }
  double relative(const Slope& s, double expected, double scale) const {
    const double difference = std::fabs(s.value - expected);
    if (scale <= 0) return 0;
    if (difference > kCertain * s.slack || difference / scale < least_) return difference / scale;
    throw Undefined("its loss has kinks or steps where its weights are");
  }

  // Random signs, so that each weight's gradient counts alike.
  Moves random_direction(double size) const {
    std::mt19937_64 random(1);
    Moves out;
    const double least = 0x1p-5 * size / std::sqrt(static_cast<double>(leaves_.size()));
    for (const auto& [storage, view] : leaves_) {
      const std::vector<double>& g = gradient_.at(storage);
      double squares = 0;
      for (const double x : g) squares += x * x;
      Array signs = aten::empty_array(view->dims, true);
      for (double& x : signs.value) x = (random() & 1) != 0 ? 1 : -1;
      const double each = 1 / std::max(std::sqrt(squares), least) /
                          std::sqrt(static_cast<double>(std::max<int64_t>(signs.size(), 1)));
      again_.add(*view, signs, each, out);
    }
    return scaled(std::move(out), 1 / norm_of(out));
  }

  // ---- which node it is

  void locate(GradientCheck& out) {
    const Contribution& leaf = first_wrong();
    const Pass& pass = pass_of(leaf);
    if (changed_behind_autograd(trace_, step_.begin, pass.begin, pass.end, out)) return;
    if (examine_functions(out)) return;
    if (is_drawn_again(pass, out)) return;
    const BackwardGraph graph(trace_, step_.begin, pass);
    if (const ScriptFunction* f = writer_of_given_gradient(trace_, step_.begin, graph, pass))
      return name_it(*f, {false, false}, out);
    keep_values(graph);
    const std::vector<size_t> suspects = suspects_of(graph, leaf);
    const auto of_script = [&](size_t k) {
      const BackwardNode& n = graph.nodes()[k];
      const bool is_right = n.function != nullptr &&
                            std::ranges::find(out.right, n.function->name) != out.right.end();
      return n.is_hook() || (n.function != nullptr && !is_right);
    };
    const auto script = std::ranges::find_if(suspects, of_script);
    // PyTorch's own node is not named where a Function that was not examined may give nothing at all to
    // what lies beyond it: then it is on no path from the wrong weight.
    if (script == suspects.end() && (suspects.size() != 1 || !all_examined_)) return;
    // Of several Functions that could not be examined, any may be it.
    std::set<std::string> names;
    for (const size_t k : suspects)
      if (of_script(k)) names.insert(graph.nodes()[k].name);
    if (names.size() > 1) return;
    // A Function whose backward pass makes no call leaves no node, and may lie anywhere between.
    if (script == suspects.end() && has_silent(pass)) return;
    // Nor where the step's own half precision may have decided a branch, such as a clamp, that is open
    // without its roundings.
    if (script == suspects.end() && step_.has_half) return;
    const BackwardNode& node = graph.nodes()[script == suspects.end() ? suspects.front() : *script];
    out.node = node.name;
    out.place = node.place;
    if (node.function != nullptr) {
      bool is_known = false;
      for (const FunctionUse& use : uses_of(trace_, step_.begin, pass)) {
        if (use.function != node.function || !use.is_found) continue;
        name_it(*node.function, forward_pass(trace_, use.first, use.last), out);
        is_known = true;
      }
      // What makes no recorded call may compute anything, and steps may be meant: neither could be
      // examined.
      if (!is_known || out.has_steps) {
        out.has_steps = false;
        out.node.clear();
        out.function.clear();
      }
    }
    out.is_hook = node.is_hook();
    if (out.is_hook && is_allowed(trace_.allowed, "", out.place)) out.allowed.push_back(out.node);
  }

  // A Function that is wrong by itself, though its part of the whole gradient is small: the step's own
  // half precision leaves much room there.
  bool is_a_function_wrong(GradientCheck& out) {
    GradientCheck alone = out;
    alone.is_wrong = true;
    try {
      if (!examine_functions(alone) || alone.is_meant()) return false;
    } catch (const Undefined&) {
      return false;
    }
    out = std::move(alone);
    return true;
  }

  // Each Function of the script by itself: one that is meant hides none that is wrong. Returns whether
  // they explain the gradient.
  bool examine_functions(GradientCheck& out) {
    struct Found {
      const ScriptFunction* function = nullptr;
      ForwardPass forward;
      std::set<FunctionState> states;
      bool is_allowed = false;
    };
    std::map<std::string, Found> found;
    for (const Pass& pass : group_) {
      for (const FunctionUse& use : uses_of(trace_, step_.begin, pass)) {
        check_stop();
        const bool allowed = is_allowed(trace_.allowed, use.function->name, "");
        const FunctionState state =
            allowed ? FunctionState::kMeant : examine(trace_, use, least_, pool_, stop_);
        Found& f = found[use.function->name];
        f.is_allowed = allowed;
        if (f.function == nullptr || state == FunctionState::kWrong) f.function = use.function;
        f.forward = forward_pass(trace_, use.first, use.last);
        f.states.insert(state);
      }
    }
    bool all = true;
    for (const auto& [name, f] : found) {
      if (name.starts_with("torch.")) continue;
      if (f.states.contains(FunctionState::kWrong)) {
        name_it(*f.function, {false, false}, out);
        out.allowed.clear();
        return true;
      }
      if (f.states.contains(FunctionState::kUnknown)) {
        all = false;
      } else {
        (f.states.contains(FunctionState::kMeant) ? out.meant : out.right).push_back(name);
        if (f.is_allowed) out.allowed.push_back(name);
      }
    }
    all_examined_ = all;
    if (!all) out.allowed.clear();
    if (!all || out.meant.empty()) return false;
    const Found& f = found.at(out.meant.front());
    name_it(*f.function, {f.forward.passes_on, !f.forward.passes_on}, out);
    return true;
  }
  // A backward pass that computes a part of the forward pass again, as checkpointing does, and draws
  // other numbers for it: with the same ones the gradient is right.
  bool is_drawn_again(const Pass& pass, GradientCheck& out) {
    for (std::map<int64_t, int64_t>& draws : drawn_again(trace_, step_.begin, pass)) {
      const Call& first = trace_.calls[static_cast<size_t>(draws.begin()->second)];
      again_.draw_as(std::move(draws));
      const bool is_right = measured() < least_;
      again_.draw_as({});
      gradient();
      if (!is_right) continue;
      out.node = out.drawn_again = first.op;
      out.place = first.place;
      return true;
    }
    return false;
  }
  bool has_silent(const Pass& pass) const {
    return std::ranges::any_of(uses_of(trace_, step_.begin, pass),
                               [](const FunctionUse& use) { return use.begin == use.end; });
  }
  static void name_it(const ScriptFunction& f, const ForwardPass& forward, GradientCheck& out) {
    out.node = f.name + "Backward";
    out.function = f.name;
    out.place = f.place;
    out.passes_on = forward.passes_on;
    out.has_steps = forward.has_steps;
  }
  const Pass& pass_of(const Contribution& c) const {
    for (const Pass& pass : group_)
      if (c.call >= pass.begin && c.call < pass.end) return pass;
    return group_.back();
  }

  // Gradients come in the order from the loss to the inputs, so those before the mistake are right.
  const Contribution& first_wrong() {
    const std::vector<Contribution>& all = group_.back().contributions;
    const auto is_wrong = [&](const Contribution& c) {
      Moves one;
      one[c.leaf] = gradient_.at(c.leaf);
      const double size = norm_of(one);
      if (size == 0) return false;
      try {
        return off(scaled(std::move(one), 1 / size), size) >= least_;
      } catch (const Undefined&) {  // too rough along this weight
        return false;
      }
    };
    size_t wrong = all.size() - 1;
    if (!is_wrong(all[wrong])) {
      for (wrong = 0; wrong + 1 < all.size() && !is_wrong(all[wrong]);) ++wrong;
      return all[wrong];
    }
    for (size_t right = 0; right < wrong;) {
      const size_t middle = (right + wrong) / 2;
      if (is_wrong(all[middle])) {
        wrong = middle;
      } else {
        right = middle + 1;
      }
    }
    return all[wrong];
  }

  // Nodes that may be the wrong one, by what they are given: from a wrong gradient towards the loss.
  std::vector<size_t> suspects_of(const BackwardGraph& graph, const Contribution& leaf) {
    constexpr int kMostAsked = 64;
    std::vector<size_t> suspects, next;
    std::set<size_t> seen;
    if (const int64_t k = graph.maker(leaf.view->storage, leaf.call); k >= 0)
      next.push_back(static_cast<size_t>(k));
    for (int asked = 0; !next.empty() && asked < kMostAsked;) {
      const size_t k = next.front();
      next.erase(next.begin());
      if (!seen.insert(k).second) continue;
      const BackwardNode& node = graph.nodes()[k];
      if (node.output != nullptr) {
        ++asked;
        if (is_right(node, values_[k])) {
          suspects.push_back(k);
          continue;
        }
        suspects.clear();
        next.clear();
      } else {
        suspects.push_back(k);
      }
      for (const auto& [view, reader] : graph.given_to(k)) {
        const int64_t of = graph.maker(view->storage, node.first);
        if (of >= 0) next.push_back(static_cast<size_t>(of));
      }
    }
    return suspects;
  }

  // Of each node what its forward call gave, and the gradient of that.
  void keep_values(const BackwardGraph& graph) {
    values_.assign(graph.nodes().size(), {});
    std::vector<uint64_t> storages;
    for (const Pass& pass : group_)
      for (const Contribution& c : pass.contributions) storages.push_back(c.view->storage);
    again_.need(storages, group_.back().end);
    std::multimap<int64_t, size_t> before, made;
    for (size_t k = 0; k < values_.size(); ++k) {
      if (graph.nodes()[k].output == nullptr) continue;
      before.emplace(graph.nodes()[k].reader, k);
      made.emplace(graph.nodes()[k].forward, k);
    }
    again_.run(group_.back().end, {}, 0, -1, [&](const Call& call) {
      check_stop();
      // Before its reader runs, which may write in place.
      for (auto [at, end] = before.equal_range(call.index + 1); at != end; ++at)
        values_[at->second].gradient = again_.read(*graph.nodes()[at->second].given);
      for (auto [at, end] = made.equal_range(call.index); at != end; ++at)
        values_[at->second].output = again_.read(*graph.nodes()[at->second].output);
    });
    need_losses();
  }

  // Along the gradient that it is given, and along random signs.
  bool is_right(const BackwardNode& node, const NodeValues& is) {
    const aten::Plane& g = is.gradient.value;
    double squares = 0, values = 0;
    for (const double x : g) squares += x * x;
    for (const double x : is.output.value) values += x * x;
    const double size = std::sqrt(squares);
    if (size == 0) return true;
    std::mt19937_64 random(2);
    const double each = 1 / std::sqrt(static_cast<double>(g.size()));
    Array signs = aten::empty_array(is.gradient.dims, true);
    double expected = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      signs.value[i] = (random() & 1) != 0 ? each : -each;
      expected += g[i] * signs.value[i];
    }
    Moves along, across;
    if (!again_.add(*node.output, is.gradient, 1 / size, along) ||
        !again_.add(*node.output, signs, 1, across))
      return true;
    const auto agrees = [&](const Moves& direction, double slope_of_gradient, double scale) {
      const Slope s = slope(direction, std::sqrt(values), node.forward);
      return std::fabs(s.value - slope_of_gradient) < std::max(least_ * scale, s.slack);
    };
    return agrees(along, size, size) && agrees(across, expected, size * each);
  }

  void check_stop() const {
    if (stop_ != nullptr && stop_->load()) throw Undefined("it was interrupted");
  }

  const TraceFile& trace_;
  const std::vector<Pass> group_;
  ThreadPool* pool_;
  const StopFlag* stop_;
  Again again_;
  const Step& step_;
  std::map<uint64_t, const TensorView*> leaves_;
  // By the calls that begin with them, with the gradients that they are given; nullptr: a one.
  std::unordered_map<int64_t, std::pair<const TensorView*, const TensorView*>> losses_;
  double weights_ = 0;  // their norm
  Moves gradient_;
  std::optional<double> here_;  // the loss
  bool all_examined_ = true;    // each Function of the script
  double least_ = step_.has_half ? kLeastOfHalf : kLeast;
  std::vector<NodeValues> values_;  // of the backward pass in which a weight's gradient is wrong
};

bool trains(const TraceFile& trace, int64_t begin, int64_t end) {
  return std::any_of(trace.calls.begin() + begin, trace.calls.begin() + end,
                     [](const Call& call) { return contribution_of(call).has_value(); });
}

// A branch, or a factor, may be 0 in the first step and not later: the Functions of later steps are
// examined by themselves, from the last step back. Where one is wrong the whole gradient of its step
// decides.
void examine_later(const TraceFile& trace, int64_t after, ThreadPool* pool, const StopFlag* stop,
                   GradientCheck& out) {
  constexpr int kMostSteps = 8;
  const auto number_of = [&](int64_t i) { return trace.calls[static_cast<size_t>(i)].step; };
  double numbers = 0;
  auto begin = static_cast<int64_t>(trace.calls.size());
  for (int64_t end = begin, left = kMostSteps; end > after && left > 0; end = begin, --left) {
    while (begin > after && number_of(begin - 1) == number_of(end - 1)) --begin;
    if (!trains(trace, begin, end)) continue;
    const Step step = step_of(trace, begin, end);
    const double least = step.has_half ? kLeastOfHalf : kLeast;
    numbers += size_of_step(trace, step);
    if (numbers > kLargestStep) return;  // of all of them together
    if (!step.why.empty() || wrong_function(trace, step, least, pool, stop) == nullptr) continue;
    GradientCheck found;
    found.step = number_of(begin);
    found.functions.assign(step.functions.begin(), step.functions.end());
    const std::string why = why_not([&] {
      for (std::vector<Pass>& group : groups_of(trace, step))
        if (!found.accuses()) Check(trace, step, std::move(group), pool, stop).run(found);
    });
    if (!why.empty() || !found.accuses()) continue;
    found.asked = true;
    out = std::move(found);
    return;
  }
}

}  // namespace

GradientCheck check_gradient(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop) {
  constexpr int kTried = 2;
  GradientCheck out;
  int tried = 0;
  const auto n = static_cast<int64_t>(trace.calls.size());
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {
    const int32_t number = trace.calls[static_cast<size_t>(begin)].step;
    while (end < n && trace.calls[static_cast<size_t>(end)].step == number) ++end;
    const Step step = step_of(trace, begin, end);
    if (!trains(trace, begin, end)) continue;
    out.step = number;
    out.functions.assign(step.functions.begin(), step.functions.end());
    out.why = step.why;
    if (out.why.empty() && size_of_step(trace, step) > kLargestStep)
      out.why = "the step is too large";
    if (!out.why.empty()) return out;
    GradientCheck found = out;
    out.why = why_not([&] {
      for (std::vector<Pass>& group : groups_of(trace, step)) {
        found.unscaled = std::max(found.unscaled, unscaled_passes(trace, step, group));
        Check(trace, step, std::move(group), pool, stop).run(found);
      }
    });
    if (out.why.empty()) {
      found.asked = true;
      if (!found.is_wrong && !trace.functions.empty()) examine_later(trace, end, pool, stop, found);
      return found;
    }
    // First weights may lie on a kink: biases of 0 behind inputs of 0. Later ones rarely do.
    if (++tried == kTried) return out;
  }
  if (tried == 0) out.why = "no gradient of a weight is in the trace";
  return out;
}

}  // namespace twinrun
