// Compares the results of each recorded call with its definition, and describes what is outside.
#include "harness/trace/judge_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>

#include "backends/aten/definitions.h"
#include "backends/aten/graph.h"
#include "backends/aten/precision.h"
#include "harness/tensors/pattern.h"
#include "harness/tensors/signatures.h"
#include "harness/trace/coverage.h"
#include "harness/trace/function_check.h"
#include "harness/trace/gradient.h"
#include "harness/trace/operands.h"
#include "harness/trace/step_checks.h"
#include "harness/trace/update_check.h"
#include "harness/trace/values.h"

namespace twinrun {
namespace {

using aten::Arithmetic;
using aten::Array;
using aten::Call;
using aten::Element;
using aten::Estimate;
using aten::Expected;
using aten::TensorView;
using aten::Value;

constexpr size_t kMaxFindings = 200;

struct Compared : OracleVerdict {
  int64_t saturated = 0;  // untestable numbers that stand for infinity, which may overflow or not
  std::vector<int64_t> wrong;
  // The largest of all elements that have finite bounds and finite expected values.
  double error = 0, expected = 0, bound = 0;
  double expected_squares = 0, bound_squares = 0;  // sums of the same
};

// Kernels of products and convolutions promise to add in binary32 whatever the operands' type.
bool adds_products(std::string_view op) {
  const std::string name = base_name(op);
  return name.ends_with("mm") || name.find("convolution") != std::string::npos ||
         name.ends_with("linear") || name.ends_with("mv") || name.ends_with("dot");
}

Compared compare(const Array& expected, const Array& actual, Element element, const Arithmetic& m) {
  constexpr int64_t kPiece = 1 << 15;
  std::vector<Compared> parts(static_cast<size_t>((expected.size() + kPiece - 1) / kPiece + 1));
  aten::in_ranges(m, expected.size(), [&](int64_t begin, int64_t end) {
    Compared& mine = parts[static_cast<size_t>(begin / kPiece)];
    for (int64_t i = begin; i < end; ++i) {
      const Estimate e = aten::stored(expected.at(i), element);
      const double got = actual.value[static_cast<size_t>(i)];
      // A NaN that is computed from a NaN is right, and has no bound.
      if (std::isnan(e.value) && std::isnan(got)) continue;
      if (!(e.radius < aten::kInfinity)) {
        ++mine.untestable;
        if (std::fabs(e.value) >= aten::format_of(element).overflow / 2) ++mine.saturated;
        continue;
      }
      const double ratio = oracle::ratio(got, e);
      if (ratio > 1) mine.wrong.push_back(i);
      mine.note(i, got, e, ratio);
      if (!aten::finite(e.value)) continue;
      mine.error = std::fmax(mine.error, std::fabs(got - e.value));
      mine.expected = std::fmax(mine.expected, std::fabs(e.value));
      mine.bound = std::fmax(mine.bound, e.radius);
      mine.expected_squares += e.value * e.value;
      mine.bound_squares += e.radius * e.radius;
    }
  });
  Compared all;
  all.elements = expected.size();
  for (const Compared& part : parts) {
    all.add(part);
    all.saturated += part.saturated;
    all.error = std::fmax(all.error, part.error);
    all.expected = std::fmax(all.expected, part.expected);
    all.bound = std::fmax(all.bound, part.bound);
    all.expected_squares += part.expected_squares;
    all.bound_squares += part.bound_squares;
    all.wrong.insert(all.wrong.end(), part.wrong.begin(), part.wrong.end());
  }
  return all;
}

// What the wrong elements look like; "" if nothing fits all of them.
std::string signature(const Array& expected, const Array& actual, const Compared& c,
                      Element element, const Array* before) {
  if (before != nullptr && before->size() == actual.size() &&
      std::ranges::all_of(c.wrong,
                          [&](int64_t i) { return actual.at(i).value == before->at(i).value; }))
    return "what it was before the call, which did not write it";
  std::vector<double> radius;
  for (int64_t i = 0; i < expected.size(); ++i)
    radius.push_back(aten::stored(expected.at(i), element).radius);
  return signature_of({.dims = expected.dims,
                       .got = actual.value,
                       .expected = expected.value,
                       .wrong = c.wrong,
                       .allowed = radius,
                       .slack = kSlack,
                       .binary32 = element == Element::kF32})
      .signature;
}

class Judge {
 public:
  Judge(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop, const SeeResult& see)
      : trace_(trace), pool_(pool), stop_(stop), see_(see), coverage_(trace) {}

  void judge(const Call& call) {
    ++verdict_.calls;
    TraceOp& op = verdict_.ops[call.op];
    ++op.calls;
    if (call.failed) return unjudged(call, "the call raised an exception");
    note_changes(call);
    largest_ = -1;
    try {
      if (call.op == "torch.compile.inductor") return judge_region(call, op);
      std::vector<const TensorView*> given;
      aten::collect(call.result, given);
      if (given.empty() && call.written.empty()) {
        // There is nothing to compare; a launched kernel may have written anything.
        if (call.op.starts_with("triton."))
          return unjudged(call, "a launched kernel, of which the name alone was recorded");
        return count_judged(call, op);
      }
      const Arithmetic m = arithmetic(call);
      const Expected expected = aten::expected_of(call, m);
      if (!expected.problem.empty()) found(call, expected.problem);
      compare_all(call, expected, m, op);
      count_judged(call, op);
    } catch (const aten::Undefined& e) {
      unjudged(call, call.left_out ? "bytes were left out of the trace for the budget" : e.what());
    }
  }
  int64_t judged() const { return verdict_.judged; }
  TraceVerdict take() {
    finish();
    return std::move(verdict_);
  }

 private:
  // Replays the graph of a region that was compiled, and compares what the region gave.
  void judge_region(const Call& call, TraceOp& op) {
    if (call.graph == nullptr) {
      for (const auto& [name, v] : call.kwargs) {
        if (name == "unknown") return unjudged(call, v.text.empty() ? "no graph" : v.text);
      }
      return unjudged(call, "no graph");
    }
    if (call.left_out) return unjudged(call, "bytes were left out of the trace for the budget");
    std::vector<const TensorView*> actual;
    for (const Value& v : call.result.items)
      actual.push_back(v.kind == Value::Kind::kTensor ? &v.tensor : nullptr);
    for (const TensorView& w : call.written) actual.push_back(&w);
    const aten::Replayed r =
        aten::replay(*call.graph, call.args[0].items, actual, [&](const Call& node) {
          Arithmetic m = arithmetic(node);
          m.elementary = m.fast_exp;  // inductor's vectors use exp_u20 everywhere
          m.erf_of_one = aten::Arithmetic::kErfOfVectors;
          return m;
        });
    int64_t judged = 0;
    std::string why;
    for (size_t i = 0; i < r.outputs.size(); ++i) {
      if (i >= actual.size() || actual[i] == nullptr || r.nodes[i] == nullptr) continue;
      if (!r.outputs[i].has_value()) {
        if (why.empty()) why = r.why[i];
        ++left_open_[r.why[i]];
        coverage_.left_open(call, r.why[i]);
        continue;
      }
      ++judged;
      const size_t before = verdict_.findings.size();
      compare_one(call, *r.outputs[i], *actual[i], i, actual.size(), false, arithmetic(call), op);
      if (verdict_.findings.size() > before) {
        CallFinding& f = verdict_.findings.back();
        f.result = fmt::format("{} of {} at {}", f.result.empty() ? "the result" : f.result + ",",
                               r.nodes[i]->op, r.nodes[i]->place);
        f.made_by = aten::made_by(*call.graph, *r.nodes[i]);
      }
    }
    if (judged == 0 && !why.empty()) return unjudged(call, why);
    count_judged(call, op);
  }

  void count_judged(const Call& call, TraceOp& op) {
    coverage_.judged(call);
    if (largest_ >= 0) op.ratios.push_back(largest_);
    ++verdict_.judged;
    ++op.judged;
  }

  Arithmetic arithmetic(const Call& call) const {
    Arithmetic m;
    m.pool = pool_;
    std::vector<const TensorView*> tensors;
    for (const Value& v : call.args) aten::collect(v, tensors);
    for (const auto& [name, v] : call.kwargs) aten::collect(v, tensors);
    aten::collect(call.result, tensors);
    const Permitted& permitted = trace_.permitted;
    bool wide = false, narrow = false;
    for (const TensorView* t : tensors) {
      m.gpu = m.gpu || t->on_device;
      m.half = m.half || aten::is_half(t->element);
      wide = wide || t->element == Element::kF64;
      narrow =
          narrow || (aten::is_float(t->element) && t->element != Element::kF64 && !t->dims.empty());
    }
    m.bfloat16_steps = !trace_.onednn_bfloat16;
    if (wide && !narrow) {
      // The oracle computes in binary64 too, so the unit stands for its own roundings as well.
      m.unit = 0x1p-52;
      m.smallest = 0x1p-1022;
      m.overflow = std::numeric_limits<double>::max();
    } else if (m.gpu) {
      m.operand = permitted.tf32_products ? 0x1p-10 : 0;
      m.convolved = permitted.tf32_convolutions ? 0x1p-10 : 0;
      m.bfloat16_parts = permitted.bfloat16_parts, m.float16_parts = permitted.float16_parts;
    } else {
      m.operand = permitted.bfloat16_products ? 0x1p-8 : permitted.tf32_products ? 0x1p-11 : 0;
      m.convolved = m.operand;
      m.nnpack = permitted.nnpack;
    }
    return m;
  }

  void compare_all(const Call& call, const Expected& expected, const Arithmetic& m, TraceOp& op) {
    const std::vector<const TensorView*> actual = compared_views(call, expected.results.size());
    const bool in_place =
        !actual.empty() && !call.written.empty() && actual.front() == &call.written.front();
    for (size_t i = 0; i < expected.results.size() && i < actual.size(); ++i) {
      if (!expected.results[i].has_value() || actual[i] == nullptr) continue;
      compare_one(call, *expected.results[i], *actual[i], i, actual.size(), in_place, m, op);
    }
  }

  void compare_one(const Call& call, const Array& expected, const TensorView& actual, size_t which,
                   size_t of, bool in_place, const Arithmetic& m, TraceOp& op) {
    if (expected.dims != actual.dims) {
      return found(call, fmt::format("result {} is {}, but the definition gives [{}]", which,
                                     actual.type(), fmt::join(expected.dims, ", ")));
    }
    const Array got = aten::array_of(actual, pool_);
    const Compared c = compare(expected, got, actual.element, m);
    verdict_.elements += expected.size();
    verdict_.untestable += c.untestable;
    op.elements += expected.size();
    const double size = std::sqrt(c.expected_squares), slack = std::sqrt(c.bound_squares);
    coverage_.compared(call, actual, size, slack,
                       2 * (c.untestable - c.saturated) > expected.size());
    op.worst = std::max(op.worst, c.worst);
    if (c.worst_element >= 0) largest_ = std::max(largest_, c.worst);
    if (see_) {
      see_({call, actual, expected, c, size, slack, coverage_.on_path(call)});
    }
    const std::string result = of > 1 ? fmt::format("result {} of {}", which + 1, of) : "";
    if (c.wrong.empty()) {
      // Results that may be flushed to zero say nothing about cancellation.
      if (c.error > c.expected / 2 && c.error > m.smallest) {
        ++verdict_.ill_conditioned_results;
        keep_once(verdict_.ill_conditioned, call, result, actual.type(), c, 0);
      }
      return;
    }
    const auto digits = adds_products(call.op)
                            ? std::nullopt
                            : aten::digits_with_narrow_sums(call, m, which, actual);
    if (digits) {
      ++verdict_.precision_loss_results;
      keep_once(verdict_.precision_losses, call, result, actual.type(), c, *digits);
      return;
    }
    ++op.outside;
    CallFinding f = finding(call);
    f.result = result;
    f.type = actual.type();
    f.elements = c.elements;
    f.outside = c.outside;
    f.pattern = element_pattern(actual.dims, c.wrong);
    f.worst_index = index_text(actual.dims, c.worst_element);
    f.got = c.subject;
    f.expected = c.value;
    f.bound = c.radius;
    const Value* first = call.args.empty() ? nullptr : &call.args[0];
    Array before;
    const bool has_before = in_place && first != nullptr && which == 0 &&
                            first->kind == Value::Kind::kTensor && first->tensor.data != nullptr;
    if (has_before) before = aten::array_of(first->tensor, pool_);
    f.operands = operands_of(call, actual.dims, which, c.worst_element, pool_);
    f.signature = signature(expected, got, c, actual.element, has_before ? &before : nullptr);
    keep(std::move(f));
  }

  template <typename T>
  static T located(const Call& call) {
    T f;
    f.call = call.index;
    f.step = call.step;
    f.op = call.op;
    f.place = call.place;
    f.module = call.module;
    f.node = call.node;
    f.phase = call.phase();
    return f;
  }
  static CallFinding finding(const Call& call) {
    auto f = located<CallFinding>(call);
    f.forward = call.forward;
    f.composed = call.composed;
    return f;
  }
  // Results of one operation at one place are one entry.
  static void keep_once(std::vector<IllConditioned>& kept, const Call& call,
                        const std::string& result, std::string type, const Compared& c,
                        double digits) {
    auto f = located<IllConditioned>(call);
    f.result = result;
    f.type = std::move(type);
    f.error = c.error;
    f.expected = c.expected;
    f.bound = c.bound;
    f.digits = digits;
    const auto same = std::ranges::find_if(kept, [&](const IllConditioned& k) {
      return k.op == f.op && k.place == f.place && k.module == f.module && k.result == f.result &&
             k.type == f.type;
    });
    if (same != kept.end()) {
      ++same->times;
      same->error = std::fmax(same->error, f.error);
      same->expected = std::fmax(same->expected, f.expected);
      same->bound = std::fmax(same->bound, f.bound);
      same->digits = std::fmin(same->digits, f.digits);
    } else if (kept.size() < kMaxFindings) {
      kept.push_back(std::move(f));
    }
  }
  void found(const Call& call, std::string problem) {
    CallFinding f = finding(call);
    f.problem = std::move(problem);
    keep(std::move(f));
  }
  void keep(CallFinding f) {
    ++verdict_.outside_calls;
    if (verdict_.findings.size() < kMaxFindings) verdict_.findings.push_back(std::move(f));
  }
  void unjudged(const Call& call, const std::string& why) { coverage_.unjudged(call, why); }
  void note_changes(const Call& call) {
    std::vector<const TensorView*> tensors;
    for (const Value& v : call.args) aten::collect(v, tensors);
    for (const TensorView* t : tensors) {
      if (!t->changed_unseen) continue;
      verdict_.notes.push_back(fmt::format(
          "step {}: the memory of {} (storage {}) changed without a recorded call before call {} "
          "({})",
          call.step, t->type(), t->storage, call.index, call.op));
    }
  }
  void finish() {
    TraceVerdict& v = verdict_;
    v.trace = trace_.path;
    v.framework = fmt::format("{} {}", trace_.framework, trace_.version);
    v.script = trace_.script;
    v.steps = trace_.steps;
    for (const auto& [why, n] : left_open_)
      v.notes.push_back(
          fmt::format("{} results of compiled regions are not judged: they need {}", n, why));
    if (trace_.cut_short)
      v.notes.emplace_back("the trace was cut short; what is complete was judged");
    if (!trace_.exception.empty())
      v.notes.push_back(fmt::format("the script ended with {}", trace_.exception));
    v.unrecorded = trace_.errors;
    if (trace_.errors > 0)
      v.notes.push_back(fmt::format("{} calls could not be recorded", trace_.errors));
    if (trace_.skipped_evaluation > 0)
      v.notes.push_back(fmt::format("{} calls of evaluations between the steps were left out",
                                    trace_.skipped_evaluation));
    v.settings = trace_.settings;
    v.observer = trace_.observer;
    v.rank = trace_.rank;
    v.ranks = trace_.ranks;
    v.rank_traces = trace_.given_ranks;
    v.gradient = check_gradient(trace_, pool_, stop_);
    v.gradient.allowed_in_vain = allowed_in_vain(trace_);
    v.update = check_updates(trace_, pool_, stop_);
    v.uncleared = uncleared_gradients(trace_);
    v.stale = stale_reads(trace_);
    v.repeats_batch = repeats_its_batch(trace_);
    v.old_copy = old_copy(trace_);
    v.evaluating = evaluates(trace_);
    v.dropout_off = trace_.dropout_off;
    const OtherWrites others = other_writes(trace_);
    v.weights_written = others.weights;
    v.gradients_written = others.gradients;
    v.stretched_loss = stretched_loss(trace_);
    v.scaled_gradients_written = written_before_unscaling(trace_);
    v.unused_backward = unused_backward_pass(trace_);
    coverage_.finish(v);
    v.trained = trained_weights(trace_);
  }

  const TraceFile& trace_;
  ThreadPool* pool_;
  const StopFlag* stop_;
  const SeeResult& see_;
  Coverage coverage_;
  TraceVerdict verdict_;
  double largest_ = -1;  // error / bound of the call that is judged; < 0 if nothing was compared
  std::map<std::string, int64_t> left_open_;  // why: results of regions
};

}  // namespace

TraceVerdict judge_trace(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop,
                         Progress* progress, const SeeResult& see) {
  Progress silent;
  if (progress == nullptr) progress = &silent;
  Judge judge(trace, pool, stop, see);
  progress->begin("judging calls", static_cast<int64_t>(trace.calls.size()));
  for (const Call& call : trace.calls) {
    if (stop != nullptr && stop->load()) break;
    judge.judge(call);
    progress->step(call.index + 1, call.op);
  }
  progress->end(fmt::format("{} judged", judge.judged()));
  progress->begin("the gradient against the loss, in binary64", 0);
  TraceVerdict verdict = judge.take();
  progress->end(verdict.gradient.asked ? fmt::format("apart by {:.1e}", verdict.gradient.worst)
                                       : "not asked");
  return verdict;
}

}  // namespace twinrun
