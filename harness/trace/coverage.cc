// Collects what was not examined, and words it.
#include "harness/trace/coverage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/trace/function_check.h"
#include "harness/trace/updates.h"
#include "harness/trace/values.h"
#include "reports/text.h"

namespace twinrun {
namespace {

using aten::Call;
using aten::TensorView;
using aten::Value;

std::string innermost(const std::string& place) { return place.substr(0, place.find('\n')); }

// Looks at each element once: an expanded tensor has the same ones many times.
template <typename Is>
bool any_element(TensorView t, Is is) {
  for (size_t d = 0; d < t.dims.size(); ++d)
    if (t.strides[d] == 0 && t.dims[d] > 1) t.dims[d] = 1;
  for (int64_t i = 0, n = t.elements(); i < n; ++i)
    if (is(t.at(i))) return true;
  return false;
}
bool has_nan(const TensorView& t) {
  return t.data != nullptr && aten::is_float(t.element) &&
         any_element(t, [](double x) { return std::isnan(x); });
}
bool is_finite(const TensorView& t) {
  return !any_element(t, [](double x) { return !std::isfinite(x); });
}
std::vector<const TensorView*> given_by(const Call& call) {
  std::vector<const TensorView*> all;
  aten::collect(call.result, all);
  for (const TensorView& w : call.written) all.push_back(&w);
  return all;
}

constexpr std::string_view kWithPlainOperations =
    "run the step with plain PyTorch operations in its place, and hold both against each other: "
    "twinrun diagnose --against B A";

// How the question of a call that was not judged can be answered.
std::string how_to_judge(const Call& call, const std::string& why) {
  if (call.left_out) return "record again with a larger --budget, or fewer --steps";
  if (call.op.starts_with("c10d.") || call.op.starts_with("_c10d_functional."))
    return "run the same batch in one process, and hold both against each other: ranks are judged "
           "one "
           "by one, and a collective is not held against the operands of all ranks";
  if (call.op.starts_with("triton.") || !call.op.starts_with("aten."))
    return std::string(kWithPlainOperations);
  if (why.find("graph is not known") != std::string::npos)
    return "record from the script's start (--first 0), so that the region is compiled while it is "
           "watched";
  return "run the step on another release or device, and hold both against each other: twinrun "
         "diagnose --against B A";
}

// Of the update's norm. A parameter whose gradient has no correct digit moves in a random direction;
// from here on most of the step does.
constexpr double kMostOfTheUpdate = 0.5;

}  // namespace

Coverage::Coverage(const TraceFile& trace) : trace_(trace), path_(update_path(trace)) {}

void Coverage::open(std::string what, std::string how, const std::string& place, int64_t times,
                    bool of_program) {
  const auto [same, is_new] = at_.try_emplace(what, open_.size());
  if (!is_new) {
    open_[same->second].times += times;
    return;
  }
  open_.push_back({std::move(what), std::move(how), innermost(place), times, of_program});
}

void Coverage::judged(const Call& call) { pass(call, true); }

void Coverage::unjudged(const Call& call, const std::string& why) {
  if (has_recorded_parts(trace_, call)) {
    ++by_parts_;
    return pass(call, false);
  }
  // A call that raised an exception gave nothing.
  const bool counts = on_path(call) && !call.failed;
  UnjudgedCalls& u = unjudged_[{call.op, why}];
  ++u.calls;
  u.on_path += counts ? 1 : 0;
  if (counts)
    open(fmt::format("{} was not judged: {}", call.op, why), how_to_judge(call, why), call.place);
  pass(call, false);
}

void Coverage::left_open(const Call& region, const std::string& why) {
  if (!on_path(region)) return;
  open(fmt::format("a result of a compiled region was not judged: it needs {}", why),
       how_to_judge(region, why), region.place);
}

void Coverage::compared(const Call& call, const TensorView& result, double value, double bound,
                        bool unbounded) {
  if (unbounded && on_path(call))
    open(fmt::format("{} was not judged: most elements of a result have no finite bound", call.op),
         how_to_judge(call, ""), call.place);
  if (bound > value && aten::is_float(result.element)) wide_.push_back(result.storage);
}

void Coverage::pass(const Call& call, bool judged) {
  follow_uncertain(call);
  if (on_path(call)) {
    const auto read = read_by(call);
    of_evaluation_ += std::ranges::any_of(read, &TensorView::of_evaluation) ? 1 : 0;
  }
  wide_.clear();
  if (not_finite_.call >= 0 || call.failed) return;
  // Memory that nobody has written yet may hold anything.
  const std::string name = base_name(call.op);
  if (gives_no_values(name) || name.starts_with("aten.resize")) return;
  const auto given = given_by(call);
  if (std::ranges::none_of(given, [](const TensorView* t) { return has_nan(*t); })) return;
  NotFinite& n = not_finite_;
  n.call = call.index;
  n.step = call.step;
  n.op = call.op;
  n.place = call.place;
  n.module = call.module;
  n.node = call.node;
  n.phase = call.phase();
  n.judged = judged;
  const auto read = read_by(call);
  n.from_input = std::ranges::any_of(read, [](const TensorView* t) { return has_nan(*t); });
}

// A gradient without a correct digit makes the state that is computed from it alone uncertain, and
// the update of its parameter. Clipping and scaling in place leave it what it was.
void Coverage::follow_uncertain(const Call& call) {
  const auto reads_uncertain = [&](size_t which, size_t of, const TensorView& like) {
    for (const Value& v : call.args) {
      const TensorView* t = nullptr;
      if (v.kind == Value::Kind::kTensor) {
        t = &v.tensor;
      } else if (v.kind == Value::Kind::kList && !v.items.empty() && of % v.items.size() == 0) {
        const Value& item = v.items[which % v.items.size()];
        if (item.kind == Value::Kind::kTensor) t = &item.tensor;
      }
      if (t != nullptr && t->dims == like.dims && uncertain_.contains(t->storage)) return true;
    }
    return false;
  };
  std::vector<const TensorView*> returned;
  aten::collect(call.result, returned);
  const auto follow = [&](size_t which, size_t of, const TensorView& t, bool carries) {
    const bool wide = std::ranges::find(wide_, t.storage) != wide_.end();
    const bool uncertain = wide || (carries && reads_uncertain(which, of, t));
    if (uncertain) {
      uncertain_.insert(t.storage);
      if (call.optimizer) uncertain_updates_.emplace(t.storage, call.step);
    } else if (!carries) {
      uncertain_.erase(t.storage);
    }
  };
  if (call.composed) return;
  std::unordered_set<uint64_t> views;
  for (const TensorView* t : read_by(call)) views.insert(t->storage);
  for (size_t i = 0; i < returned.size(); ++i) {
    if (!views.contains(returned[i]->storage))
      follow(i, returned.size(), *returned[i], call.optimizer);
  }
  for (size_t i = 0; i < call.written.size(); ++i)
    follow(i, call.written.size(), call.written[i], true);
}

void Coverage::note_weights(TraceVerdict& verdict) {
  struct Sizes {
    double all = 0, uncertain = 0;
  };
  std::map<int32_t, Sizes> steps;
  for (const Parameter& p : parameters_of(trace_)) {
    const TensorView* last = nullptr;
    for (const auto& [step, moved] : p.steps) {
      if (moved.after == nullptr || moved.after->dims != moved.before->dims) continue;
      last = moved.after;
      double size = 0;
      for (int64_t i = 0; i < last->elements(); ++i) {
        const double d = last->at(i) - moved.before->at(i);
        size += d * d;
      }
      steps[step].all += size;
      if (uncertain_updates_.contains({p.storage, step})) steps[step].uncertain += size;
    }
    if (last != nullptr && !is_finite(*last)) not_finite_.weights = true;
  }
  for (const auto& [step, s] : steps) {
    if (s.all > 0)
      verdict.uncertain_update =
          std::fmax(verdict.uncertain_update, std::sqrt(s.uncertain / s.all));
  }
}

void Coverage::finish(TraceVerdict& verdict) {
  note_weights(verdict);
  for (const UnseenWrite& u : path_.unseen) {
    const Call& reader = trace_.calls[static_cast<size_t>(u.call)];
    open(u.fresh
             ? fmt::format("something that was not recorded wrote the memory of {} before {} read "
                           "it: a kernel that was launched past PyTorch's dispatcher, or another "
                           "thread",
                           u.type, reader.op)
             : fmt::format("the memory of {} changed between the calls {} and {} ({}), and no "
                           "recorded call wrote it: a kernel that was launched past PyTorch's "
                           "dispatcher, another thread or process",
                           u.type, u.before, u.call, reader.op),
         std::string(kWithPlainOperations), reader.place);
  }
  if (const GradientCheck& g = verdict.gradient; g.is_wrong && g.node.empty()) {
    open(fmt::format(
             "the gradient of step {} differs from the derivative of its loss by {:.2g} of it "
             "in binary64, and the part of the backward pass that makes it was not found",
             g.step, g.worst),
         "leave parts of the model out until it no longer does", "", 1, true);
  }
  for (const ScriptFunction& f : trace_.functions) {
    // PyTorch's are not the script's.
    if (f.name.starts_with("torch.")) continue;
    const GradientCheck& g = verdict.gradient;
    const auto among = [&](const std::vector<std::string>& names) {
      return std::ranges::find(names, f.name) != names.end();
    };
    if (f.is_compiled ? (g.asked && !g.is_wrong) || is_allowed(trace_.allowed, f.name, "")
                      : g.asked && (!g.is_meant() || f.name == g.function) && among(g.functions))
      continue;
    if (among(g.right) || among(g.meant)) continue;
    open(
        fmt::format("whether the backward pass of {}, which is not PyTorch's, is the derivative of "
                    "its forward pass was not examined",
                    f.name),
        "call torch.autograd.gradcheck(FUNCTION.apply, inputs) with inputs in float64", f.place,
        std::max<int64_t>(f.calls, 1), true);
  }
  for (const PartialStep& s : path_.partial) {
    open(fmt::format(
             "the {} of step {} {} not recorded: its update begins with gradients from outside",
             s.backward ? "forward pass" : "forward and the backward pass", s.step,
             s.backward ? "was" : "were"),
         "record whole steps: begin before the forward pass, and give more --steps", "");
  }
  if (trace_.errors > 0) {
    open(fmt::format("{} calls could not be recorded{}{}", trace_.errors,
                     trace_.first_error.empty() ? "" : ", the first because of ",
                     trace_.first_error),
         "take what stopped the recorder out of the script, or report it", "");
  }
  if (trace_.steps_elsewhere > 0 && trace_.steps == 0) {
    open(fmt::format("{} optimizer steps ran in other threads, and a recording has the calls of "
                     "one thread",
                     trace_.steps_elsewhere),
         "call twinrun.watch in the thread that trains", "");
  } else if (trace_.steps == 0 && trace_.steps_made > 0) {
    open(fmt::format("the script ended after {}, before the first that was to be recorded",
                     text::plural(trace_.steps_made, "training step")),
         "give a smaller --first", "");
  } else if (trace_.steps_asked > 0 && trace_.steps == 0 && !trace_.cut_short) {
    open(
        "no training step of the script was seen",
        "call twinrun.watch around what trains, in its process, and next_step() after each step of "
        "a loop that PyTorch's optimizers do not make",
        "");
  }
  const int64_t of_evaluation = std::max(of_evaluation_, trace_.skipped_evaluation_used);
  if (of_evaluation > 0) {
    open(
        "the step reads what the trained model computed in eval mode without gradients, which was "
        "taken for an evaluation and not recorded",
        "compute it with a copy of the model (copy.deepcopy), whose calls are recorded", "",
        of_evaluation);
  }
  if (trace_.ranks > 1 && verdict.rank_traces < trace_.ranks) {
    open(fmt::format("{} of {} ranks were not judged with this one",
                     trace_.ranks - verdict.rank_traces, trace_.ranks),
         "give the traces of all ranks: twinrun diagnose NAME.rank*.twin", "");
  }
  if (verdict.uncertain_update > kMostOfTheUpdate) {
    open(fmt::format(
             "{:.0f} % of the update's norm belongs to parameters whose gradient has no correct "
             "digit: its bound is wider than its value",
             100 * verdict.uncertain_update),
         "look at the results without a correct digit below, and compute them in float64", "");
  }
  verdict.unjudged = std::move(unjudged_);
  verdict.by_parts = by_parts_;
  verdict.on_path = std::ranges::count(path_.on, true);
  verdict.without_update = path_.without_update;
  if (not_finite_.weights && !not_finite_.judged && verdict.outside_calls == 0) {
    open(not_finite_.call < 0
             ? "some weights are not finite, and no recorded call returned the first NaN"
             : fmt::format(
                   "some weights are not finite; the first NaN was returned by {}, which was "
                   "not judged",
                   not_finite_.op),
         "record from the first step that is finite (--first)", not_finite_.place);
  }
  verdict.not_finite = std::move(not_finite_);
  verdict.open = std::move(open_);
}

}  // namespace twinrun
