// Holds the recorded gradient against differences of the loss, in binary64.
#include "harness/trace/gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <set>

#include "backends/aten/definitions.h"
#include "harness/trace/again.h"
#include "harness/trace/backward_passes.h"
#include "harness/trace/step_checks.h"
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
constexpr double kLargestStep = 0x1p28;
// Of the weights' norm; the second step is an eighth of it. What a kink of the loss adds to a
// difference grows with the step, what the roundings of binary64 add shrinks with it.
constexpr double kFirstStep = 0x1p-20;
// A difference is told from none where the two steps agree eight times better than it is large. Below
// a thousandth of the gradient nothing is told: there, a branch that the step's own rounding decided
// (the place of a maximum) may be another one in binary64.
constexpr double kCertain = 8, kLeast = GradientCheck::kLeast;
// The same where a type of half precision decides: two numbers that differ by less than 2^-8 are
// equal there, so that of each 16 decisions between close ones one may be another.
constexpr double kLeastOfHalf = 0x1p-4;
// Relative to the loss: what its evaluation in binary64 may be off by.
constexpr double kRounding = 0x1p-46;

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

// Calls of the backward pass that follow each other and are of one node.
struct Node {
  std::string name, place;
  int64_t forward = -1, first = 0, last = 0;
  const TensorView* output = nullptr;  // what its forward call gave
  const TensorView* given = nullptr;   // the gradient of that
  int64_t reader = 0;                  // the call that reads it
  Array gradient, value;               // of `given` and `output`, in binary64
};

bool is_hook(const std::string& node) { return node.starts_with("a hook of "); }

// Whether a function of the script is made for another gradient than its own: its forward pass
// passes its input on, or is constant but for steps. `call`: one of its forward pass.
bool passes_on(const TraceFile& trace, int64_t call, bool& has_steps) {
  static constexpr std::array<std::string_view, 4> kCopies = {"aten.clone", "aten.copy",
                                                              "aten.empty_like", "aten.alias"};
  static constexpr std::array<std::string_view, 17> kSteps = {
      "aten.round",     "aten.floor",       "aten.ceil", "aten.trunc",  "aten.fix",
      "aten.sign",      "aten.sgn",         "aten.gt",   "aten.ge",     "aten.lt",
      "aten.le",        "aten.bernoulli",   "aten.eq",   "aten.argmax", "aten.argmin",
      "aten.heaviside", "aten.searchsorted"};
  has_steps = false;
  if (call < 0) return false;
  const auto inside = [&](int64_t i) {
    const Call& c = trace.calls[static_cast<size_t>(i)];
    return c.composed || (c.without_gradient && c.node.empty() && !c.optimizer);
  };
  int64_t first = call, last = call;
  while (first > 0 && inside(first - 1)) --first;
  while (last + 1 < static_cast<int64_t>(trace.calls.size()) && inside(last + 1)) ++last;
  bool passes = true;
  for (int64_t i = first; i <= last; ++i) {
    const Call& c = trace.calls[static_cast<size_t>(i)];
    if (!is_work(c)) continue;
    const std::string name = base_name(c.op);
    has_steps = has_steps || std::ranges::find(kSteps, name) != kSteps.end();
    passes = passes && (computed_by(c, read_by(c)).empty() ||
                        std::ranges::find(kCopies, name) != kCopies.end());
  }
  return passes;
}

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
    if (worst < least_) return;
    out.is_wrong = true;
    try {
      locate(out);
    } catch (const Undefined&) {  // then it is not known where
      out.node.clear();
    }
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
    for (const Pass& pass : group_)
      for (size_t i = 0; i < pass.seeds.size(); ++i) losses_[pass.seeds[i]] = pass.losses[i];
    for (int64_t i = step_.begin; i < losses_end(); ++i) {
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
      if (const auto seed = losses_.find(call.index); seed != losses_.end())
        sum += again_.read(*seed->second).value[0];
    });
    if (!std::isfinite(sum)) throw Undefined("its loss is not finite");
    return sum;
  }
  // `size`: the length of what is moved.
  // Where the loss has a kink just here (a relu of exactly 0), its slopes to both sides differ, and
  // any number between them is a gradient.
  Slope slope(const Moves& direction, double size, int64_t at = -1) {
    double found[2] = {0, 0}, largest = 0, kink = 0, step = kFirstStep * std::max(size, 1e-3);
    if (!here_) here_ = loss({}, 0, -1);
    for (double& d : found) {
      const double up = loss(direction, step, at), down = loss(direction, -step, at);
      d = (up - down) / (2 * step);
      kink = std::fabs(up - 2 * *here_ + down) / step;
      largest = std::max({largest, std::fabs(up), std::fabs(down)});
      step /= 8;
    }
    return {found[1], std::fabs(found[1] - found[0]) + kink + kRounding * largest / (8 * step)};
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
    find_nodes(pass);
    keep_values();
    std::vector<size_t> suspects = suspects_of(pass, leaf);
    const auto of_script = [&](size_t k) {
      return is_hook(nodes_[k].name) || function_of(nodes_[k].name) != nullptr;
    };
    const auto script = std::ranges::find_if(suspects, of_script);
    if (script == suspects.end() && suspects.size() != 1) return;
    // A Function whose backward pass makes no call leaves no node, and may lie anywhere between.
    if (script == suspects.end() && has_silent_function()) return;
    const Node& node = nodes_[script == suspects.end() ? suspects.front() : *script];
    out.node = node.name;
    out.place = node.place;
    if (const ScriptFunction* f = function_of(node.name)) {
      out.function = f->name;
      out.place = f->place;
      out.passes_on = passes_on(trace_, node.forward, out.has_steps);
    }
    out.is_hook = is_hook(node.name);
  }
  const ScriptFunction* function_of(const std::string& node) const {
    for (const ScriptFunction& f : trace_.functions)
      if (node == f.name + "Backward") return &f;
    return nullptr;
  }
  bool has_silent_function() const {
    std::set<std::string> heard;
    for (const auto& [storage, makers] : maker_)
      for (const auto& [call, node] : makers) heard.insert(nodes_[node].name);
    return std::ranges::any_of(trace_.functions, [&](const ScriptFunction& f) {
      return !heard.contains(f.name + "Backward");
    });
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

  void find_nodes(const Pass& pass) {
    maker_.clear();
    for (int64_t i = pass.begin; i < pass.end; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      if (!is_work(call) || call.node.empty()) continue;
      // Gradients of several uses are added up between nodes, in the name of one of them.
      const bool joins = joins_gradients(call);
      const bool same = !nodes_.empty() && !joins && nodes_.back().name == call.node &&
                        nodes_.back().forward == call.forward;
      if (!same)
        nodes_.push_back({joins ? "" : call.node,
                          call.place,
                          joins ? -1 : call.forward,
                          i,
                          i,
                          nullptr,
                          nullptr,
                          0,
                          {},
                          {}});
      nodes_.back().last = i;
      const auto read = read_by(call);
      for (const TensorView* t : computed_by(call, read))
        maker_[t->storage].emplace_back(i, nodes_.size() - 1);
      // A view of a gradient is what its node gives; one of a saved tensor is not.
      std::vector<const TensorView*> returned;
      aten::collect(call.result, returned);
      for (const TensorView* t : returned) {
        const auto at = maker_.find(t->storage);
        if (at != maker_.end() && at->second.back().first != i)
          at->second.emplace_back(i, nodes_.size() - 1);
      }
    }
    for (Node& node : nodes_) {
      if (node.forward < step_.begin || function_of(node.name) != nullptr || is_hook(node.name))
        continue;
      const Call& forward = trace_.calls[static_cast<size_t>(node.forward)];
      std::vector<const TensorView*> returned = computed_by(forward, read_by(forward));
      if (returned.empty()) continue;
      for (const auto& [view, reader] : given_to(node, pass)) {
        if (view->dims != returned.front()->dims) continue;
        node.output = returned.front();
        node.given = view;
        node.reader = reader;
        break;
      }
    }
  }
  bool joins_gradients(const Call& call) const {
    if (base_name(call.op) != "aten.add" || call.args.size() != 2 || nodes_.empty() ||
        is_hook(call.node) || function_of(call.node) != nullptr)
      return false;
    bool elsewhere = false;
    for (const Value& v : call.args) {
      if (v.kind != Value::Kind::kTensor) return false;
      const int64_t by = maker(v.tensor.storage, call.index);
      if (by < 0) return false;
      elsewhere = elsewhere || static_cast<size_t>(by) + 1 != nodes_.size();
    }
    return elsewhere;
  }
  // The node whose call last gave values to a storage before a call; -1: none did.
  int64_t maker(uint64_t storage, int64_t before) const {
    const auto at = maker_.find(storage);
    if (at == maker_.end()) return -1;
    int64_t found = -1;
    for (const auto& [call, node] : at->second)
      if (call < before) found = static_cast<int64_t>(node);
    return found;
  }
  // Gradients that a node is given, and the calls that read them.
  std::vector<std::pair<const TensorView*, int64_t>> given_to(const Node& node,
                                                              const Pass& pass) const {
    std::vector<std::pair<const TensorView*, int64_t>> out;
    std::unordered_set<uint64_t> seeds;
    for (const int64_t s : pass.seeds)
      seeds.insert(trace_.calls[static_cast<size_t>(s)].result.tensor.storage);
    for (int64_t i = node.first; i <= node.last; ++i) {
      const Call& call = trace_.calls[static_cast<size_t>(i)];
      if (!is_work(call)) continue;
      for (const TensorView* t : read_by(call)) {
        if (!aten::is_float(t->element)) continue;
        if (seeds.contains(t->storage) || maker(t->storage, node.first) >= 0)
          out.emplace_back(t, i);
      }
    }
    return out;
  }

  // Nodes that may be the wrong one, by what they are given: from a wrong gradient towards the loss.
  std::vector<size_t> suspects_of(const Pass& pass, const Contribution& leaf) {
    constexpr int kMostAsked = 64;
    std::vector<size_t> suspects, next;
    std::set<size_t> seen;
    if (const int64_t k = maker(leaf.view->storage, leaf.call); k >= 0)
      next.push_back(static_cast<size_t>(k));
    for (int asked = 0; !next.empty() && asked < kMostAsked;) {
      const size_t k = next.front();
      next.erase(next.begin());
      if (!seen.insert(k).second) continue;
      const Node& node = nodes_[k];
      if (node.output != nullptr) {
        ++asked;
        if (is_right(node)) {
          suspects.push_back(k);
          continue;
        }
        suspects.clear();
        next.clear();
      } else {
        suspects.push_back(k);
      }
      for (const auto& [view, reader] : given_to(node, pass)) {
        const int64_t of = maker(view->storage, node.first);
        if (of >= 0) next.push_back(static_cast<size_t>(of));
      }
    }
    return suspects;
  }

  void keep_values() {
    std::vector<uint64_t> storages;
    for (const Pass& pass : group_)
      for (const Contribution& c : pass.contributions) storages.push_back(c.view->storage);
    again_.need(storages, group_.back().end);
    std::multimap<int64_t, Node*> before, made;
    for (Node& node : nodes_) {
      if (node.output == nullptr) continue;
      before.emplace(node.reader, &node);
      made.emplace(node.forward, &node);
    }
    again_.run(group_.back().end, {}, 0, -1, [&](const Call& call) {
      check_stop();
      // Before its reader runs, which may write in place.
      for (auto [at, end] = before.equal_range(call.index + 1); at != end; ++at)
        at->second->gradient = again_.read(*at->second->given);
      for (auto [at, end] = made.equal_range(call.index); at != end; ++at)
        at->second->value = again_.read(*at->second->output);
    });
    need_losses();
  }

  // Along the gradient that it is given, and along random signs.
  bool is_right(const Node& node) {
    const aten::Plane& g = node.gradient.value;
    double squares = 0, values = 0;
    for (const double x : g) squares += x * x;
    for (const double x : node.value.value) values += x * x;
    const double size = std::sqrt(squares);
    if (size == 0) return true;
    std::mt19937_64 random(2);
    const double each = 1 / std::sqrt(static_cast<double>(g.size()));
    Array signs = aten::empty_array(node.gradient.dims, true);
    double expected = 0;
    for (size_t i = 0; i < g.size(); ++i) {
      signs.value[i] = (random() & 1) != 0 ? each : -each;
      expected += g[i] * signs.value[i];
    }
    Moves along, across;
    if (!again_.add(*node.output, node.gradient, 1 / size, along) ||
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
  const StopFlag* stop_;
  Again again_;
  const Step& step_;
  std::map<uint64_t, const TensorView*> leaves_;
  std::unordered_map<int64_t, const TensorView*> losses_;  // by the calls that begin with them
  double weights_ = 0;                                     // their norm
  Moves gradient_;
  std::optional<double> here_;  // the loss
  double least_ = step_.has_half ? kLeastOfHalf : kLeast;
  std::vector<Node> nodes_;  // of the backward pass in which a weight's gradient is wrong
  std::unordered_map<uint64_t, std::vector<std::pair<int64_t, size_t>>> maker_;
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
  constexpr int kTried = 2;
  GradientCheck out;
  int tried = 0;
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
      GradientCheck found = out;
      for (std::vector<Pass>& group : groups_of(trace, step)) {
        found.unscaled = std::max(found.unscaled, unscaled_passes(trace, step, group));
        Check(trace, step, std::move(group), pool, stop).run(found);
      }
      found.asked = true;
      found.why.clear();
      return found;
    } catch (const Undefined& e) {
      out.why = e.what();
    } catch (const std::bad_alloc&) {
      out.why = "it takes more memory than there is";
    }
    // First weights may lie on a kink: biases of 0 behind inputs of 0. Later ones rarely do.
    if (++tried == kTried) return out;
  }
  if (tried == 0) out.why = "no gradient of a weight is in the trace";
  return out;
}

}  // namespace twinrun
