// Aligns two traces, judges both, and decides what their difference is.
#include "harness/trace/compare_traces.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "backends/aten/definitions.h"
#include "harness/trace/other_inputs.h"
#include "harness/trace/two_gradients.h"
#include "harness/trace/updates.h"

namespace twinrun {
namespace {

using aten::Array;
using aten::Call;
using aten::TensorView;

constexpr size_t kMostListed = 50;

using ResultKey = std::pair<int64_t, const std::byte*>;  // call, first element
using Judgements = std::map<ResultKey, OracleVerdict>;   // what the judge said of each

ResultKey key_of(const Call& call, const TensorView& view) { return {call.index, view.data}; }

// How far rounding may move the gradients of a side: the sum over the calls that they depend on of
// the bound over the result's norm. It holds where no later call magnifies what it reads by more
// than bounds exceed errors, which is by a factor of tens to hundreds (docs/method/calls.md).
class Rounding {
 public:
  void note(const JudgedResult& r) {
    if (!r.on_path || r.call.optimizer || r.call.composed) return;
    // A result without a correct digit says nothing about its neighbours.
    if (!(r.bound_norm < r.expected_norm)) return;
    const double part = r.bound_norm / r.expected_norm;
    steps_[r.call.step] += part;
    largest_ = std::fmax(largest_, part);
  }
  // What could not be judged is taken to round like the worst that was, and once at least.
  double of_step(int32_t step, const TraceVerdict& v) const {
    int64_t open = 0;
    for (const OpenQuestion& q : v.open) open += q.times;
    const auto at = steps_.find(step);
    return (at == steps_.end() ? 0 : at->second) +
           std::fmax(largest_, 0x1p-24) * static_cast<double>(open);
  }

 private:
  std::map<int32_t, double> steps_;
  double largest_ = 0;
};

class Comparison {
 public:
  Comparison(const TraceFile& a, const TraceFile& b)
      : trace_a_(a),
        trace_b_(b),
        a_(values_of(a)),
        b_(values_of(b)),
        aligned_(align(a_, b_)),
        complete_(sees_all(a) && sees_all(b)) {
    for (const AlignedPair& p : aligned_.pairs) {
      const TraceResult &x = a_.results[p.a], &y = b_.results[p.b];
      ViewDifference d;
      if (x.digest != y.digest || x.view->element != y.view->element) {
        d = difference_of(*x.view, *y.view);
        // Other bits of the same value: zeros of both signs, or another type.
        if (x.view->element == y.view->element) d.differing = std::max<int64_t>(d.differing, 1);
      }
      differences_.push_back(d);
    }
    ratios_.assign(aligned_.pairs.size(), NAN);
  }

  TwoSides compare(ThreadPool* pool, const StopFlag* stop, Progress* progress) {
    out_.a = judge_trace(trace_a_, pool, stop, progress, [&](const JudgedResult& r) {
      judged_a_[key_of(r.call, r.actual)] = r.held;
      rounding_a_.note(r);
      note_ratio(r);
    });
    out_.b = judge_trace(trace_b_, pool, stop, progress, [&](const JudgedResult& r) {
      judged_b_[key_of(r.call, r.actual)] = r.held;
      rounding_b_.note(r);
    });
    list_differences();
    list_unaligned();
    out_.inputs = other_inputs(sides());
    other_arguments();
    if (out_.inputs.empty() && out_.differing > 0)
      out_.meant = compare_gradients(trace_a_, trace_b_, pool, stop);
    if (!out_.meant.agree()) other_operations();
    other_updates();
    if (out_.inputs.size() > kMostListed) out_.inputs.resize(kMostListed);
    counterparts();
    decide();
    return std::move(out_);
  }

 private:
  // The largest |a - b| of a pair over twice the bound of a's element: b's bound is the same where
  // both calls read the same. Otherwise the largest difference over twice the largest bound is a
  // mere unit of length.
  void note_ratio(const JudgedResult& r) {
    const auto [begin, end] = a_.of_call[static_cast<size_t>(r.call.index)];
    for (size_t i = begin; i < end; ++i) {
      if (a_.results[i].view->data != r.actual.data || !aligned_.pair_of_a[i]) continue;
      const size_t k = *aligned_.pair_of_a[i];
      const TensorView& other = *b_.results[aligned_.pairs[k].b].view;
      if (differences_[k].differing == 0 || other.dims != r.expected.dims) continue;
      double ratio = 0, largest = 0;
      for (int64_t n = 0; n < r.expected.size(); ++n) {
        const double x = r.actual.at(n), y = other.at(n);
        const double bound = 2 * std::fmax(aten::stored(r.expected.at(n), r.actual.element).radius,
                                           aten::stored(r.expected.at(n), other.element).radius);
        largest = std::fmax(largest, bound);
        ratio = std::fmax(ratio, oracle::ratio(x, {y, bound}));
      }
      if (!reads_the_same(k)) ratio = largest > 0 ? differences_[k].largest / largest : INFINITY;
      ratios_[k] = ratio;
    }
  }

  static void fill(SideCall& s, const Judgements& judged, const TraceResult& r) {
    const auto at = judged.find(key_of(*r.call, *r.view));
    if (at == judged.end()) return;
    s.judged = at->second.untestable == 0;
    s.worst = at->second.worst;
    s.outside = at->second.outside;
  }
  SideDifference difference(size_t k) const {
    static constexpr const char* kWords[] = {"bits", "values", "order"};
    const AlignedPair& p = aligned_.pairs[k];
    const TraceResult &x = a_.results[p.a], &y = b_.results[p.b];
    SideDifference d;
    d.a = side_of(*x.call);
    d.b = side_of(*y.call);
    fill(d.a, judged_a_, x);
    fill(d.b, judged_b_, y);
    d.type = x.view->type();
    d.by = kWords[static_cast<size_t>(p.by)];
    d.same_inputs = reads_the_same(k);
    d.elements = differences_[k].elements;
    d.differing = differences_[k].differing;
    d.largest = differences_[k].largest;
    d.relative = differences_[k].relative();
    d.ratio = ratios_[k];
    return d;
  }
  Sides sides() const { return {trace_a_, trace_b_, a_, b_, aligned_, differences_}; }
  bool reads_the_same(size_t k) const {
    const AlignedPair& p = aligned_.pairs[k];
    return same_reads(sides(), *a_.results[p.a].call, *b_.results[p.b].call);
  }
  // A workspace or memory that nobody has initialised: the call is judged, this result never is.
  bool has_no_meaning(const TraceResult& r, const Judgements& judged) const {
    const auto at = judged.lower_bound({r.call->index, nullptr});
    return at != judged.end() && at->first.first == r.call->index &&
           !judged.contains(key_of(*r.call, *r.view));
  }

  void list_differences() {
    std::map<int32_t, StepGrowth> steps;
    double record = 0, largest = 0;
    for (size_t k = 0; k < aligned_.pairs.size(); ++k) {
      const AlignedPair& p = aligned_.pairs[k];
      const TraceResult &x = a_.results[p.a], &y = b_.results[p.b];
      ++(p.by == AlignedBy::kBits     ? out_.by_bits
         : p.by == AlignedBy::kValues ? out_.by_values
                                      : out_.by_order);
      StepGrowth& step = steps[x.call->step];
      ++step.aligned;
      if (differences_[k].differing == 0 || has_no_meaning(x, judged_a_) ||
          has_no_meaning(y, judged_b_))
        continue;
      ++step.differing;
      ++out_.differing;
      if (x.call->optimizer) step.relative = std::fmax(step.relative, differences_[k].relative());
      const bool is_first = !out_.first.has_value();
      if (is_first) out_.first = difference(k);
      const bool origin = is_first || (!x.draw && reads_the_same(k));
      // The calls that a function is composed of explain it, where all of them are recorded.
      const bool composed = x.call->composed && y.call->composed && complete_;
      if (origin && !x.draw && !composed) {
        SideDifference d = difference(k);
        if ((!d.a.judged || !d.b.judged) && out_.unexplained.size() < kMostListed)
          out_.unexplained.push_back(std::move(d));
      }
      if (!(ratios_[k] < INFINITY)) continue;
      if (ratios_[k] > record && out_.growth.size() < kMostListed) {
        record = ratios_[k];
        out_.growth.push_back(difference(k));
      }
      if (ratios_[k] > largest || !out_.largest) {
        largest = ratios_[k];
        out_.largest = difference(k);
      }
    }
    for (auto& [step, growth] : steps) {
      growth.step = step;
      out_.steps.push_back(growth);
    }
  }

  template <typename Visit>
  static void each_unaligned(const TraceFile& trace, const TraceValues& values,
                             const std::vector<std::optional<size_t>>& pairs, Visit visit) {
    for (const Call& call : trace.calls) {
      const auto [begin, end] = values.of_call[static_cast<size_t>(call.index)];
      bool none = begin < end;
      for (size_t i = begin; i < end; ++i) none = none && !pairs[i].has_value();
      if (none && !visit(call)) return;
    }
  }
  void list_unaligned() {
    each_unaligned(trace_a_, a_, aligned_.pair_of_a, [&](const Call& call) {
      ++out_.unaligned_a[call.op];
      return true;
    });
    each_unaligned(trace_b_, b_, aligned_.pair_of_b, [&](const Call& call) {
      ++out_.unaligned_b[call.op];
      return true;
    });
  }

  // The same bits went in, both results are within their bounds, and they are further apart than
  // the bounds allow: the calls were told to compute something else.
  void other_arguments() {
    for (size_t k = 0; k < aligned_.pairs.size(); ++k) {
      if (!(ratios_[k] > 1) || !reads_the_same(k)) continue;
      const SideDifference d = difference(k);
      if (!d.a.judged || !d.b.judged || d.a.outside > 0 || d.b.outside > 0) continue;
      if (a_.results[aligned_.pairs[k].a].draw || known_input(d.a.call)) continue;
      add_input(OtherInput::Kind::kArguments, *a_.results[aligned_.pairs[k].a].call,
                *b_.results[aligned_.pairs[k].b].call, k);
      return;
    }
  }
  bool known_input(int64_t call) const {
    return std::ranges::any_of(out_.inputs, [&](const OtherInput& o) { return o.a.call == call; });
  }
  void add_input(OtherInput::Kind kind, const Call& a, const Call& b, std::optional<size_t> k) {
    OtherInput o;
    o.kind = kind;
    o.a = side_of(a);
    o.b = side_of(b);
    if (k) {
      o.elements = differences_[*k].elements;
      o.differing = differences_[*k].differing;
      o.relative = differences_[*k].relative();
    }
    out_.inputs.push_back(std::move(o));
  }

  // Calls of both sides without a partner, after which the values do not come together again.
  void other_operations() {
    if (!out_.inputs.empty()) return;
    const auto& pairs = aligned_.pairs;
    size_t far = 0;
    while (far < pairs.size() && !is_far(far)) ++far;
    if (far == pairs.size()) return;
    int64_t near = 0, apart = 0;
    for (size_t k = far; k < pairs.size(); ++k) {
      if (differences_[k].differing > 0) ++(pairs[k].by == AlignedBy::kOrder ? apart : near);
    }
    if (near >= apart) return;
    int64_t after_a = -1, after_b = -1;  // the last calls that agree
    for (size_t k = 0; k < far; ++k) {
      after_a = std::max(after_a, a_.results[pairs[k].a].call->index);
      if (pairs[k].by != AlignedBy::kOrder)
        after_b = std::max(after_b, b_.results[pairs[k].b].call->index);
    }
    const Call* x = unaligned_after(trace_a_, a_, aligned_.pair_of_a, after_a, false);
    const Call* y = unaligned_after(trace_b_, b_, aligned_.pair_of_b, after_b, false);
    const Call& end = *a_.results[pairs[far].a].call;
    if (x != nullptr && y != nullptr && x->index < end.index &&
        y->index < b_.results[pairs[far].b].call->index)
      add_input(OtherInput::Kind::kOperation, *x, *y, {});
  }
  bool is_far(size_t k) const {
    const AlignedPair& p = aligned_.pairs[k];
    return p.by == AlignedBy::kOrder && differences_[k].differing > 0 && !a_.results[p.a].draw &&
           !ill_conditioned(k);
  }
  template <typename Pairs>
  static const Call* unaligned_after(const TraceFile& trace, const TraceValues& values,
                                     const Pairs& pairs, int64_t after, bool optimizer) {
    const Call* found = nullptr;
    each_unaligned(trace, values, pairs, [&](const Call& call) {
      if (call.index > after && (!optimizer || call.optimizer)) found = &call;
      return found == nullptr;
    });
    return found;
  }

  // Whether gradients and updates are further apart than rounding can make them. An update may be
  // where the gradient's sign is rounding, which the optimizer makes steps of full size: so much of
  // it is left out on each side.
  void other_updates() {
    double explained = 0;
    for (const UpdateDifference& u : compare_updates(trace_a_, trace_b_)) {
      explained += rounding_a_.of_step(u.step, out_.a) + rounding_b_.of_step(u.step, out_.b);
      for (StepGrowth& step : out_.steps) {
        if (step.step != u.step) continue;
        step.update = u.relative;
        step.gradients = u.gradients;
        step.explained = explained;
      }
      const MeantGradients& m = out_.meant;
      const bool means_another = m.differ() && u.step == m.step;
      // The sum of the bounds may miss what later calls magnify; without rounding, nothing is left.
      is_same_ = is_same_ || (m.agree() && u.step == m.step && u.gradients > explained);
      const bool agrees = (u.gradients <= explained || is_same_) && !means_another;
      updates_agree_ = updates_agree_ && agrees;
      compared_updates_ = true;
      if (!out_.inputs.empty()) continue;
      const double noise = 2 * std::fmax(out_.a.uncertain_update, out_.b.uncertain_update);
      if (!agrees && u.gradients == u.gradients) {
        add_update(OtherInput::Kind::kGradient, u.step, u.gradients, explained);
      } else if (u.unlike > 0.5 || u.relative * u.relative - noise * noise > 0.25) {
        add_update(OtherInput::Kind::kUpdate, u.step, u.relative, 0);
      }
    }
  }
  void add_update(OtherInput::Kind kind, int32_t step, double relative, double explained) {
    OtherInput o;
    o.kind = kind;
    for (const bool of_a : {true, false}) {
      const TraceFile& trace = of_a ? trace_a_ : trace_b_;
      const auto& pairs = of_a ? aligned_.pair_of_a : aligned_.pair_of_b;
      // Where the values part; else the first call without a partner; else the step's first call.
      const bool update = kind == OtherInput::Kind::kUpdate;
      const Call* at = update ? nullptr : where_values_part(of_a);
      if (at == nullptr) at = unaligned_after(trace, of_a ? a_ : b_, pairs, -1, update);
      if (at == nullptr) {
        const auto first = std::ranges::find(trace.calls, step, &Call::step);
        if (first != trace.calls.end()) at = &*first;
      }
      if (at != nullptr) (of_a ? o.a : o.b) = side_of(*at);
      const int64_t pass = of_a ? out_.meant.call_a : out_.meant.call_b;
      if (kind == OtherInput::Kind::kGradient && out_.meant.differ() && pass >= 0) {
        SideCall& side = of_a ? o.a : o.b;
        side = side_of(trace.calls[static_cast<size_t>(pass)]);
        side.op.clear();  // the backward pass as a whole
        side.phase = "backward";
      }
    }
    o.a.step = step;
    o.relative = relative;
    o.explained = explained;
    if (kind == OtherInput::Kind::kGradient && out_.meant.differ())
      o.meaning = out_.meant.sentence();
    out_.inputs.push_back(std::move(o));
  }
  // The first pair that differs, on one side; or a call without a partner that lies between it and
  // the last one that agrees. nullptr: all agree.
  const Call* where_values_part(bool of_a) const {
    const TraceValues& values = of_a ? a_ : b_;
    const Call* last = nullptr;
    for (size_t k = 0; k < aligned_.pairs.size(); ++k) {
      const AlignedPair& p = aligned_.pairs[k];
      const Call* const call = values.results[of_a ? p.a : p.b].call;
      if (differences_[k].differing == 0) {
        if (last == nullptr || call->index > last->index) last = call;
        continue;
      }
      if (a_.results[p.a].draw || ill_conditioned(k)) continue;
      const Call* const alone = unaligned_after(of_a ? trace_a_ : trace_b_, values,
                                                of_a ? aligned_.pair_of_a : aligned_.pair_of_b,
                                                last == nullptr ? -1 : last->index, false);
      return alone != nullptr && alone->index < call->index ? alone : call;
    }
    return nullptr;
  }
  // What is left of terms that cancel may differ in every digit.
  bool ill_conditioned(size_t k) const {
    const Call& x = *a_.results[aligned_.pairs[k].a].call;
    return std::ranges::any_of(out_.a.ill_conditioned, [&](const IllConditioned& f) {
      return f.op == x.op && f.place == x.place && f.module == x.module;
    });
  }

  static const Call* first_outside(const TraceVerdict& v, const TraceFile& trace) {
    return v.findings.empty() ? nullptr
                              : &trace.calls[static_cast<size_t>(v.findings.front().call)];
  }
  void counterparts() {
    for (const bool of_a : {true, false}) {
      const Call* call = first_outside(of_a ? out_.a : out_.b, of_a ? trace_a_ : trace_b_);
      if (call == nullptr) continue;
      const auto& judged = of_a ? judged_a_ : judged_b_;
      const auto [begin, end] = (of_a ? a_ : b_).of_call[static_cast<size_t>(call->index)];
      for (size_t i = begin; i < end; ++i) {
        const auto& r = (of_a ? a_ : b_).results[i];
        const auto at = judged.find(key_of(*call, *r.view));
        const auto k = (of_a ? aligned_.pair_of_a : aligned_.pair_of_b)[i];
        if (at == judged.end() || at->second.outside == 0 || !k) continue;
        (of_a ? out_.of_a : out_.of_b) = difference(*k);
        break;
      }
    }
  }

  void decide() {
    const bool bug_a = out_.a.outside_calls > 0, bug_b = out_.b.outside_calls > 0;
    if (bug_a || bug_b) {
      // What comes after the first wrong result may follow from it, and so do gradients and updates.
      std::erase_if(out_.inputs, [&](const OtherInput& o) {
        return o.kind == OtherInput::Kind::kGradient || o.kind == OtherInput::Kind::kUpdate ||
               (bug_a && o.a.call >= out_.a.findings.front().call) ||
               (bug_b && o.b.call >= out_.b.findings.front().call);
      });
      out_.unexplained.clear();
      out_.verdict = VerdictClass::kEngineBug;
      out_.side = bug_a && bug_b ? "A and B" : bug_a ? "A" : "B";
      const CallFinding& f = (bug_a ? out_.a : out_.b).findings.front();
      out_.headline = fmt::format(
          "{} on side {} computes something else than its definition, first at step {}, call {}{}",
          f.op, bug_a ? "A" : "B", f.step, f.call,
          bug_a && bug_b
              ? fmt::format("; on side B {} does, at step {}, call {}", out_.b.findings.front().op,
                            out_.b.findings.front().step, out_.b.findings.front().call)
              : "");
      if (!out_.inputs.empty())
        out_.notes.push_back("The sides do not get the same inputs, either: " +
                             out_.inputs.front().sentence());
      return;
    }
    if (!out_.inputs.empty()) {
      out_.verdict = VerdictClass::kProgram;
      out_.headline = out_.inputs.front().sentence();
      return;
    }
    const auto all = static_cast<int64_t>(aligned_.pairs.size());
    // What one side could not examine may be different on the other, unless both compute gradients
    // that rounding explains.
    const bool agree = compared_updates_ && updates_agree_;
    const TraceVerdict& open = out_.a.open.empty() ? out_.b : out_.a;
    if (agree) out_.unexplained.clear();
    if (all == 0) {
      out_.headline = "no result of one side could be found on the other";
    } else if (out_.a.judged == 0 || out_.b.judged == 0) {
      out_.headline =
          "no call of side " + std::string(out_.a.judged == 0 ? "A" : "B") + " could be judged";
    } else if (out_.differing == 0) {
      out_.verdict = VerdictClass::kIdentical;
      out_.headline = fmt::format("all {} results that both sides have are the same bits", all);
    } else if (!out_.unexplained.empty()) {
      const SideDifference& d = out_.unexplained.front();
      out_.headline =
          fmt::format("{} of step {}, call {} differs {}, and side {} could not be judged there",
                      d.a.op, d.a.step, d.a.call,
                      d.same_inputs ? "although it reads the same bits on both sides" : "first",
                      d.a.judged   ? "B"
                      : d.b.judged ? "A"
                                   : "A and side B");
    } else if (!open.open.empty() && !agree) {
      out_.headline =
          fmt::format("on side {}, {}", &open == &out_.a ? "A" : "B", open.open[0].what);
    } else if (out_.meant.asked && !out_.meant.agree()) {
      out_.headline = "without rounding, the two runs do not mean quite the same gradient: " +
                      out_.meant.sentence();
    } else {
      out_.verdict = VerdictClass::kNoise;
      out_.headline = fmt::format(
          "{} of {} results differ, {}every judged call of both sides is within its bound",
          out_.differing, all,
          agree ? "the gradients by no more than rounding explains, and " : "and ");
    }
  }

  const TraceFile &trace_a_, &trace_b_;
  const TraceValues a_, b_;
  const Alignment aligned_;
  std::vector<ViewDifference> differences_;
  std::vector<double> ratios_;
  const bool complete_;
  Judgements judged_a_, judged_b_;
  Rounding rounding_a_, rounding_b_;
  bool compared_updates_ = false, updates_agree_ = true;
  bool is_same_ = false;  // both sides mean the same gradient, and differ by more than the bounds
  TwoSides out_;
};

}  // namespace

TwoSides compare_traces(const TraceFile& a, const TraceFile& b, ThreadPool* pool,
                        const StopFlag* stop, Progress* progress) {
  return Comparison(a, b).compare(pool, stop, progress);
}

}  // namespace twinrun
