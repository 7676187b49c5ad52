// Holds the recorded gradient against differences of the loss, in binary64.
#include "harness/trace/gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "harness/trace/again.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Array;
using aten::Call;
using aten::TensorView;
using aten::Undefined;
using aten::Value;

// Numbers that a step may have in its tensors, counted once for each call that reads them: beyond it
// the evaluation takes minutes.
constexpr double kLargestStep = 0x1p31;
// Of the weights' norm; the second step is an eighth of it. What a kink of the loss adds to a
// difference grows with the step, what the roundings of binary64 add shrinks with it.
constexpr double kStep = 0x1p-20;
// A difference is told from none where the two steps agree eight times better than it is large. Below
// a thousandth of the gradient nothing is told: there, a branch that the step's own rounding decided
// (the place of a maximum) may be another one in binary64.
constexpr double kCertain = 8, kLeast = GradientCheck::kLeast;
// Relative to the loss: what its evaluation in binary64 may be off by.
constexpr double kRounding = 0x1p-46;

bool is_work(const Call& call) {
  return !call.failed && !call.composed && call.op.starts_with("aten.");
}

const Value* named(const Call& call, std::string_view name) {
  for (const auto& [key, v] : call.kwargs)
    if (key == name) return &v;
  return nullptr;
}

// The gradient that a call within AccumulateGrad adds, and the leaf's storage.
struct Contribution {
  int64_t call = 0;
  uint64_t leaf = 0;
  const TensorView* view = nullptr;
};
std::optional<Contribution> contribution_of(const Call& call) {
  const Value* variable = named(call, "variable");
  if (variable == nullptr || variable->kind != Value::Kind::kInteger) return std::nullopt;
  const std::string name = base_name(call.op);
  const size_t at = name == "aten.detach" || name == "aten.clone" ? 0 : 1;
  if (name != "aten.detach" && name != "aten.clone" && name != "aten.add" && name != "aten.copy")
    return std::nullopt;
  if (call.args.size() <= at || call.args[at].kind != Value::Kind::kTensor) return std::nullopt;
  return Contribution{call.index, static_cast<uint64_t>(variable->integer), &call.args[at].tensor};
}

// One backward pass.
struct Pass {
  int64_t begin = 0, end = 0;
  std::vector<const TensorView*> losses;
  std::vector<int64_t> seeds;  // the calls that make the ones it begins with
  std::vector<Contribution> contributions;
  std::set<uint64_t> leaves() const {
    std::set<uint64_t> out;
    for (const Contribution& c : contributions) out.insert(c.leaf);
    return out;
  }
};

struct Step {
  int64_t begin = 0, end = 0;
  std::vector<Pass> passes;
  std::string why;                  // it cannot be asked
  std::set<std::string> functions;  // of the script, whose backward passes ran
};

std::vector<std::string> function_names(const TraceFile& trace) {
  std::vector<std::string> out;
  for (const ScriptFunction& f : trace.functions) out.push_back(f.name);
  return out;
}

bool is_seed(const Call& call) {
  return call.node.empty() && base_name(call.op) == "aten.ones_like" && !call.args.empty() &&
         call.args[0].kind == Value::Kind::kTensor && call.args[0].tensor.elements() == 1 &&
         aten::is_float(call.args[0].tensor.element) && call.args[0].tensor.requires_gradient;
}

Step step_of(const TraceFile& trace, int64_t begin, int64_t end) {
  Step out{begin, end, {}, "", {}};
  std::vector<int64_t> seeds;
  bool inside = false;
  std::unordered_set<uint64_t> computed;  // in the last pass
  for (int64_t i = begin; i < end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    if (call.op == "torch.compile.inductor" || call.op.starts_with("triton."))
      out.why = "regions that torch.compile made are not evaluated again";
    if (call.op.starts_with("c10d") || call.op.starts_with("_c10d"))
      out.why = "its gradient depends on other processes";
    if (call.left_out) out.why = "bytes were left out of the trace for the budget";
    if (!is_work(call)) continue;
    if (is_seed(call)) {
      seeds.push_back(i);
      inside = false;
      continue;
    }
    if (call.node.empty()) {
      if (!call.optimizer && !seeds.empty() && !inside) seeds.clear();
      inside = false;
      continue;
    }
    if (!inside && !seeds.empty()) {
      Pass pass{i, i + 1, {}, seeds, {}};
      for (const int64_t s : seeds)
        pass.losses.push_back(&trace.calls[static_cast<size_t>(s)].args[0].tensor);
      out.passes.push_back(std::move(pass));
      seeds.clear();
      computed.clear();
    } else if (!inside && std::ranges::none_of(read_by(call), [&](const TensorView* t) {
                 return computed.contains(t->storage);
               })) {
      out.why = "a backward pass begins with a gradient that the script gives";
    }
    inside = true;
    std::vector<const TensorView*> returned;
    aten::collect(call.result, returned);
    for (const TensorView* t : returned) computed.insert(t->storage);
    for (const std::string& name : function_names(trace))
      if (call.node == name + "Backward") out.functions.insert(name);
    const auto c = contribution_of(call);
    if (out.passes.empty()) continue;
    Pass& pass = out.passes.back();
    pass.end = i + 1;
    if (!c) continue;
    const auto same = [&](const Contribution& other) { return other.leaf == c->leaf; };
    const auto known = std::ranges::find_if(pass.contributions, same);
    if (known == pass.contributions.end()) {
      pass.contributions.push_back(*c);
    } else if (known->view->dims != c->view->dims) {
      out.why = "several weights lie in one storage";
    }
  }
  std::erase_if(out.passes, [](const Pass& p) { return p.contributions.empty(); });
  return out;
}

// Passes that add to the same gradient before an optimizer reads it.
std::vector<std::vector<Pass>> groups_of(const TraceFile& trace, const Step& step) {
  std::vector<std::vector<Pass>> out;
  for (const Pass& pass : step.passes) {
    bool together = !out.empty() && out.back().back().leaves() == pass.leaves();
    for (int64_t i = out.empty() ? 0 : out.back().back().end; together && i < pass.begin; ++i) {
      const Call& call = trace.calls[static_cast<size_t>(i)];
      together = !(call.optimizer && call.node.empty() && !call.written.empty());
    }
    if (together) {
      out.back().push_back(pass);
    } else {
      out.push_back({pass});
    }
  }
  return out;
}

double norm_of(const Moves& moves) {
  double squares = 0;
  for (const auto& [storage, cells] : moves)
    for (const double x : cells) squares += x * x;
  return std::sqrt(squares);
}
double dot(const Moves& a, const Moves& b) {
  double sum = 0;
  for (const auto& [storage, cells] : a) {
    const auto other = b.find(storage);
    if (other == b.end()) continue;
    for (size_t i = 0; i < std::min(cells.size(), other->second.size()); ++i)
      sum += cells[i] * other->second[i];
  }
  return sum;
}
Moves scaled(Moves moves, double by) {
  for (auto& [storage, cells] : moves)
    for (double& x : cells) x *= by;
  return moves;
}

// The slope of the loss along a direction of length 1, and how far it may be off.
struct Slope {
  double value = 0, slack = 0;
};

// A node of the backward pass on the way from the loss to a leaf.
struct Node {
  std::string name, place;
  int64_t first = 0, last = 0;         // its calls
  const TensorView* given = nullptr;   // the gradient that it is given
  int64_t reader = 0;                  // the call that reads it
  const TensorView* output = nullptr;  // what it is the gradient of
  int64_t made_by = -1;                // the call that gave `output`
  Array gradient, value;               // in binary64
};

class Check {
 public:
  Check(const TraceFile& trace, const Step& step, std::vector<Pass> group, ThreadPool* pool,
        const StopFlag* stop)
      : trace_(trace),
        group_(std::move(group)),
        stop_(stop),
        again_(trace, step.begin, step.end, leaves_of(group_), pool),
        step_(step) {}

  void run(GradientCheck& out) {
    find_leaves();
    gradient();
    const double size = norm_of(gradient_);
    if (!std::isfinite(size)) throw Undefined("its gradient is not finite");
    if (size == 0) throw Undefined("its gradient is 0");
    out.passes += static_cast<int64_t>(group_.size());
    out.weights += static_cast<int64_t>(leaves_.size());
    const double along = off(scaled(gradient_, 1 / size), size);
    const Moves random = random_direction(size);
    double squares = 0;
    for (const auto& [storage, cells] : random) {
      const std::vector<double>& g = gradient_.at(storage);
      for (size_t i = 0; i < std::min(g.size(), cells.size()); ++i)
        squares += g[i] * g[i] * cells[i] * cells[i];
    }
    const double across = off(random, std::sqrt(squares));
    const double worst = std::max(along, across);
    out.worst = std::max(out.worst, worst);
    if (worst < kLeast) return;
    out.is_wrong = true;
    locate(out);
  }

 private:
  static std::unordered_set<uint64_t> leaves_of(const std::vector<Pass>& group) {
    const std::set<uint64_t> all = group.front().leaves();
    return {all.begin(), all.end()};
  }
  int64_t losses_end() const { return group_.back().seeds.back() + 1; }

  // The view of each leaf as a whole.
  void find_leaves() {
    for (const Contribution& c : group_.front().contributions) leaves_[c.leaf] = nullptr;
    for (int64_t i = step_.begin; i < group_.back().end; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      // Without autograd, a weight is given its first values.
      if (call.without_gradient) continue;
      for (const TensorView* t : read_by(call)) {
        const auto at = leaves_.find(t->storage);
        if (at == leaves_.end() || at->second != nullptr || !t->requires_gradient) continue;
        const auto& all = group_.front().contributions;
        const auto c = std::ranges::find(all, t->storage, &Contribution::leaf);
        if (c->view->dims == t->dims) at->second = t;
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
    again_.run(group_.back().end, {}, 0, -1, [&](const Call& call) {
      check_stop();
      const auto c = at.find(call.index);
      if (c == at.end()) return;
      if (!Again::add(*leaves_.at(c->second->leaf), again_.read(*c->second->view), 1, gradient_))
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
      for (const Pass& pass : group_) {
        const auto seed = std::ranges::find(pass.seeds, call.index);
        if (seed != pass.seeds.end())
          sum += again_.read(*pass.losses[static_cast<size_t>(seed - pass.seeds.begin())]).value[0];
      }
    });
    if (!std::isfinite(sum)) throw Undefined("its loss is not finite");
    return sum;
  }
  // `size`: the length of what is moved.
  Slope slope(const Moves& direction, double size, int64_t at = -1) {
    double found[2] = {0, 0}, largest = 0, step = kStep * std::max(size, 1e-3);
    for (double& d : found) {
      const double up = loss(direction, step, at), down = loss(direction, -step, at);
      d = (up - down) / (2 * step);
      largest = std::max({largest, std::fabs(up), std::fabs(down)});
      step /= 8;
    }
    return {found[1], std::fabs(found[1] - found[0]) + kRounding * largest / (8 * step)};
  }
  // How far the slope is from the gradient's, of `scale`; 0 where that is not certain.
  double off(const Moves& direction, double scale) {
    const Slope s = slope(direction, weights_);
    return relative(s, dot(gradient_, direction), scale);
  }
  static double relative(const Slope& s, double expected, double scale) {
    const double difference = std::fabs(s.value - expected);
    if (scale <= 0) return 0;
    if (difference > kCertain * s.slack || difference / scale < kLeast) return difference / scale;
    throw Undefined("its loss is too rough for differences to decide");
  }

  // Random signs, so that each weight's gradient counts alike.
  Moves random_direction(double size) const {
    std::mt19937_64 random(1);
    Moves out;
    const double least = 1e-3 * size / std::sqrt(static_cast<double>(leaves_.size()));
    for (const auto& [storage, view] : leaves_) {
      const std::vector<double>& g = gradient_.at(storage);
      double squares = 0;
      for (const double x : g) squares += x * x;
      Array signs = aten::empty_array(view->dims, true);
      for (double& x : signs.value) x = (random() & 1) != 0 ? 1 : -1;
      const double each = 1 / std::max(std::sqrt(squares), least) /
                          std::sqrt(static_cast<double>(std::max<int64_t>(signs.size(), 1)));
      Again::add(*view, signs, each, out);
    }
    return scaled(std::move(out), 1 / norm_of(out));
  }

  // ---- which node it is

  void locate(GradientCheck& out) {
    const uint64_t leaf = wrong_leaf();
    const Pass& pass = group_.back();
    const auto c = std::ranges::find(pass.contributions, leaf, &Contribution::leaf);
    std::vector<Node> path = path_to(pass, *c);
    keep_values(path);
    need_losses();
    // From the loss on: the last node that is given what is right, and the first that is not.
    size_t right = path.size(), wrong = 0;
    bool known = false;
    while (true) {
      // `path` begins at the leaf. Nodes between the two that can be asked:
      std::vector<size_t> between;
      for (size_t k = wrong + (known ? 1 : 0); k < right; ++k)
        if (path[k].output != nullptr) between.push_back(k);
      if (between.empty()) break;
      const size_t middle = between[between.size() / 2];
      if (is_right(path[middle])) {
        right = middle;
      } else {
        wrong = middle;
        known = true;
      }
    }
    // One of these nodes: from `right`, which is given the right gradient, to before `wrong`.
    if (path.empty()) return;
    const size_t last = known ? wrong + 1 : 0, first = std::min(right, path.size() - 1);
    const Node* culprit = &path[first];
    for (size_t k = last; k <= first && k < path.size(); ++k)
      if (function_of(path[k].name) != nullptr) culprit = &path[k];
    out.node = culprit->name;
    out.place = culprit->place;
    if (const ScriptFunction* f = function_of(culprit->name)) {
      out.function = f->name;
      out.place = f->place;
    }
    // What the function makes of its input, to tell a mistake from what is meant.
    const Node* input = known ? &path[wrong] : nullptr;
    if (input != nullptr) {
      out.factor = factor_of(*input);
      const Node* output = first < path.size() && right < path.size() ? &path[right] : nullptr;
      out.passes_on = output != nullptr &&
                      output->value.value.size() == input->value.value.size() &&
                      output->value.value == input->value.value;
    }
  }
  const ScriptFunction* function_of(const std::string& node) const {
    for (const ScriptFunction& f : trace_.functions)
      if (node == f.name + "Backward") return &f;
    return nullptr;
  }

  uint64_t wrong_leaf() {
    std::vector<std::pair<double, uint64_t>> sizes;
    for (const auto& [storage, cells] : gradient_) {
      double squares = 0;
      for (const double x : cells) squares += x * x;
      sizes.emplace_back(std::sqrt(squares), storage);
    }
    std::ranges::sort(sizes, std::greater<>());
    constexpr size_t kTried = 16;
    for (size_t i = 0; i < std::min(kTried, sizes.size()); ++i) {
      const auto [size, storage] = sizes[i];
      if (size == 0) break;
      Moves one;
      one[storage] = gradient_.at(storage);
      try {
        if (off(scaled(std::move(one), 1 / size), size) >= kLeast) return storage;
      } catch (const Undefined&) {  // too rough along this weight
      }
    }
    return sizes.front().second;
  }

  // The last call before `before` that gave values to a storage.
  int64_t producer(uint64_t storage, int64_t before, int64_t from) const {
    for (int64_t i = before; i-- > from;) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      if (!is_work(call)) continue;
      for (const TensorView& w : call.written)
        if (w.storage == storage) return i;
      std::vector<const TensorView*> returned;
      aten::collect(call.result, returned);
      const auto read = read_by(call);
      for (const TensorView* t : returned) {
        const bool view = std::ranges::any_of(
            read, [&](const TensorView* r) { return r->storage == t->storage; });
        if (t->storage == storage && !view) return i;
      }
    }
    return -1;
  }

  std::vector<Node> path_to(const Pass& pass, const Contribution& leaf) const {
    std::vector<Node> path;
    uint64_t storage = leaf.view->storage;
    int64_t before = leaf.call;
    for (int64_t at = producer(storage, before, pass.begin); at >= 0;
         at = producer(storage, before, pass.begin)) {
      const Call& made = trace_.calls[static_cast<size_t>(at)];
      Node node{made.node, made.place, at, at, nullptr, 0, nullptr, -1, {}, {}};
      while (node.first > pass.begin) {
        const Call& call = trace_.calls[static_cast<size_t>(node.first - 1)];
        if (is_work(call) && (call.node != made.node || call.forward != made.forward)) break;
        --node.first;
      }
      const TensorView* of = nullptr;  // what the forward call gave
      if (made.forward >= 0 && function_of(made.node) == nullptr) {
        std::vector<const TensorView*> returned;
        aten::collect(trace_.calls[static_cast<size_t>(made.forward)].result, returned);
        if (!returned.empty()) of = returned.front();
      }
      find_given(node, pass, of);
      if (node.given == nullptr) break;
      if (of != nullptr && of->dims == node.given->dims) {
        node.output = of;
        node.made_by = made.forward;
      }
      storage = node.given->storage;
      before = node.first;
      path.push_back(std::move(node));
    }
    return path;
  }
  // The gradient that a node is given: computed in the backward pass before it, of the right shape.
  void find_given(Node& node, const Pass& pass, const TensorView* of) const {
    for (const bool shaped : {true, false}) {
      for (int64_t i = node.first; i <= node.last; ++i) {
        const Call& call = trace_.calls[static_cast<size_t>(i)];
        if (!is_work(call)) continue;
        for (const TensorView* t : read_by(call)) {
          if (!aten::is_float(t->element)) continue;
          if (shaped && (of == nullptr || t->dims != of->dims)) continue;
          const bool seed = std::ranges::any_of(pass.seeds, [&](int64_t s) {
            return trace_.calls[static_cast<size_t>(s)].result.tensor.storage == t->storage;
          });
          if (!seed && producer(t->storage, node.first, pass.begin) < 0) continue;
          node.given = t;
          node.reader = i;
          return;
        }
      }
    }
  }

  void keep_values(std::vector<Node>& path) {
    std::vector<uint64_t> storages;
    for (const Pass& pass : group_)
      for (const Contribution& c : pass.contributions) storages.push_back(c.view->storage);
    again_.need(storages, group_.back().end);
    again_.run(group_.back().end, {}, 0, -1, [&](const Call& call) {
      check_stop();
      for (Node& node : path) {
        // Before its reader runs, which may write in place.
        if (call.index + 1 == node.reader || call.index == node.reader) {
          if (node.gradient.value.empty()) node.gradient = again_.read(*node.given);
        }
        if (call.index == node.made_by) node.value = again_.read(*node.output);
      }
    });
  }

  Slope slope_at(const Node& node, double& size) {
    Moves direction;
    double squares = 0, values = 0;
    for (const double x : node.gradient.value) squares += x * x;
    for (const double x : node.value.value) values += x * x;
    size = std::sqrt(squares);
    if (size == 0 || !Again::add(*node.output, node.gradient, 1 / size, direction)) return {};
    return slope(direction, std::sqrt(values), node.made_by);
  }
  bool is_right(const Node& node) {
    double size = 0;
    const Slope s = slope_at(node, size);
    if (size == 0) return true;
    return std::fabs(s.value - size) < std::max(kLeast * size, s.slack);
  }
  // The gradient over the slope, along itself; 0: the loss does not change.
  double factor_of(const Node& node) {
    double size = 0;
    const Slope s = slope_at(node, size);
    if (size == 0 || std::fabs(s.value) <= std::max(s.slack, 1e-9 * size)) return 0;
    return size / s.value;
  }

  void check_stop() const {
    if (stop_ != nullptr && stop_->load()) throw Undefined("it was interrupted");
  }

  const TraceFile& trace_;
  const std::vector<Pass> group_;
  const StopFlag* stop_;
  Again again_;
  const Step& step_;
  std::map<uint64_t, const TensorView*> leaves_;
  double weights_ = 0;  // their norm
  Moves gradient_;
};

double size_of_step(const TraceFile& trace, const Step& step) {
  double numbers = 0;
  for (int64_t i = step.begin; i < step.end; ++i) {
    const Call& call = trace.calls[static_cast<size_t>(i)];
    if (!is_work(call) || call.optimizer) continue;
    for (const TensorView* t : read_by(call)) numbers += static_cast<double>(t->elements());
  }
  return numbers;
}

}  // namespace

GradientCheck check_gradient(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop) {
  GradientCheck out;
  const auto n = static_cast<int64_t>(trace.calls.size());
  for (int64_t begin = 0, end = 0; begin < n; begin = end) {
    const int32_t number = trace.calls[static_cast<size_t>(begin)].step;
    while (end < n && trace.calls[static_cast<size_t>(end)].step == number) ++end;
    const Step step = step_of(trace, begin, end);
    const bool trains =
        std::any_of(trace.calls.begin() + begin, trace.calls.begin() + end,
                    [](const Call& call) { return contribution_of(call).has_value(); });
    if (!trains) continue;
    out.step = number;
    out.functions.assign(step.functions.begin(), step.functions.end());
    out.why = step.why;
    if (out.why.empty() && size_of_step(trace, step) > kLargestStep)
      out.why = "the step is too large";
    if (!out.why.empty()) return out;
    try {
      for (std::vector<Pass>& group : groups_of(trace, step))
        Check(trace, step, std::move(group), pool, stop).run(out);
      out.asked = true;
    } catch (const Undefined& e) {
      out.why = e.what();
    }
    return out;
  }
  out.why = "no gradient of a weight is in the trace";
  return out;
}

}  // namespace twinrun
