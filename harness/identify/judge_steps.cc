// Judges the steps that were kept: whether decisions that depend on rounding explain them, whether
// they started from another state than the engine reported, whether resuming gives the same step
// again, and whether replicas diverge.
#include "harness/identify/judge_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "backends/variants/variant.h"
#include "harness/envelope/members.h"
#include "harness/envelope/screen_steps.h"
#include "harness/identify/identify_fit.h"
#include "harness/lockstep/links.h"
#include "harness/run/one_step.h"
#include "harness/tensors/distance.h"
#include "harness/tensors/pattern.h"
#include "program/base/distributions.h"

namespace twinrun {
namespace {

constexpr int64_t kReloads = 2;
constexpr int kTowardsStart = 6;
// What the update of one replica may round: two roundings of what is stored, either way.
constexpr double kOfUpdate = 0x1p-22;

// How often steps are set aside in turn: each turn leaves fewer steps, and a look over all of them
// may still be outside.
constexpr int kTurns = 3;

void erase_steps(std::vector<ProbedState>& states, const std::vector<int64_t>& steps) {
  std::erase_if(states, [&](const ProbedState& s) {
    return std::ranges::find(steps, s.step) != steps.end();
  });
}

const ProbedState& at_step(const std::vector<ProbedState>& states, int64_t step) {
  return *std::ranges::find(states, step, &ProbedState::step);
}

std::vector<int64_t> steps_of(const std::vector<TensorMismatch>& outside) {
  std::set<int64_t> steps;
  for (const TensorMismatch& m : outside) steps.insert(m.step);
  return {steps.begin(), steps.end()};
}

// Counts the subject as inside if it differs from the program without changing what the batch
// means.
void take_as_harmless(Identification& tried, size_t states) {
  if (tried.outcome != Identification::Outcome::kExplained ||
      !tried.explanations.front().harmless())
    return;
  tried.outcome = Identification::Outcome::kInside;
  tried.harmless = tried.explanations.front();
  tried.ratio = tried.harmless->ratio;
  tried.states = static_cast<int64_t>(states);
  tried.explanations.clear();
  tried.outside.clear();
  tried.twins.clear();
}

// The step with that number, the first and the last.
std::vector<ProbedState> three_of(const std::vector<ProbedState>& states, int64_t step) {
  std::vector<ProbedState> out;
  for (const ProbedState& state : states) {
    if (state.step == step || &state == &states.front() || &state == &states.back())
      out.push_back(state);
  }
  return out;
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  return std::sqrt(squared_distance(a, b));
}

double norm(const std::vector<double>& a) {
  double sum = 0;
  for (const double x : a) sum += x * x;
  return std::sqrt(sum);
}

// A variable of real numbers that a step updates.
bool is_updated(const StateVar& var) {
  return var.type.dtype == DType::kF32 && var.next != kNoValue;
}

// The compared tensors in the order of computation.
std::vector<Compared> ordered(const Program& program, int64_t most) {
  std::vector<Compared> out = compared_tensors(program, most);
  std::ranges::stable_sort(out, {}, &Compared::id);
  return out;
}

}  // namespace

void take_as_declared(Identification& match) {
  if (match.undeclared.empty()) return;
  match.undeclared.clear();
  match.computes_as = row_of(match.held.precision).word;
  match.computes = match.held.does;
}

StepsJudge::StepsJudge(const Experiment& e, const Program& asked, Backend& engine,
                       IdentifyOptions o)
    : e_(e), asked_(asked), engine_(engine), o_(std::move(o)), declared_(engine.capabilities()) {
  if (!declared_.ours) slack_ = settings_slack(e);
}

bool may_hang_on_decisions(int64_t outside, int64_t steps, bool rounds_operands,
                           double false_alarm) {
  // In binary32 decisions are rare.
  if (!rounds_operands) return 2 * outside <= steps;
  constexpr double kOfSteps = 1.0 / 3;
  return binomial_at_least(static_cast<double>(steps), kOfSteps, static_cast<double>(outside)) >
         false_alarm;
}

// Conforming engines of one precision class, each with the update of its own gradients.
Result<std::vector<Observed>> StepsJudge::members(const std::vector<ProbedState>& states,
                                                  const std::vector<Compared>& tensors, int count,
                                                  const PrecisionClass& of) const {
  std::vector<Observed> out;
  const ConformingMembers conforming{e_, asked_, declared_, tensors, states, o_.threads};
  for (int k = 0; k < count; ++k) {
    TWINRUN_ASSIGN(Observed o, conforming.member(of, static_cast<uint64_t>(k) + 1,
                                                 {asked_, states, nullptr, 1, false}));
    out.push_back(std::move(o));
  }
  return out;
}

// Steps that are outside of the program with these changes only because a decision fell the other
// way.
Result<std::vector<int64_t>> StepsJudge::decided(const std::vector<TensorMismatch>& outside,
                                                 const PrecisionClass& held,
                                                 const std::vector<ProbedState>& states,
                                                 const std::vector<Explanation::Part>& parts,
                                                 const IdentifyOptions& options) const {
  std::vector<ProbedState> alone;
  for (const int64_t step : steps_of(outside)) {
    const bool together = std::ranges::any_of(
        outside, [&](const TensorMismatch& m) { return m.step == step && m.all_steps; });
    if (!together) alone.push_back(at_step(states, step));
  }
  std::vector<int64_t> out;
  if (alone.empty() || !may_hang_on_decisions(static_cast<int64_t>(alone.size()),
                                              static_cast<int64_t>(states.size()),
                                              rounds_operands(held), o_.false_alarm))
    return out;
  TWINRUN_ASSIGN(const std::set<int64_t> stand,
                 steps_that_stand(e_, asked_, engine_, alone, parts, outside, held, options));
  for (const ProbedState& state : alone) {
    if (!stand.contains(state.step)) out.push_back(state.step);
  }
  return out;
}

Result<Identification> StepsJudge::match(std::vector<ProbedState>& states, int64_t screened,
                                         const std::vector<ProbedState>& left_out) {
  if (!states.empty()) {
    TWINRUN_ASSIGN(Identification made, identify_made(states, screened));
    if (left_out.empty() || has_loss_scale(made)) return made;
  }
  states.insert(states.end(), left_out.begin(), left_out.end());
  std::ranges::sort(states, {}, &ProbedState::step);
  return identify_made(states, screened);
}

// Whether the script may scale its loss, because numbers overflow where binary32 does not: results
// are rounded, as was declared or found.
bool StepsJudge::has_loss_scale(const Identification& match) const {
  const auto declared = declared_precision(declared_);
  if (declared && row_of(*declared).results != Rounded::kNone) return true;
  if (!match.held.tight) return true;
  const PrecisionRow* found =
      match.undeclared.empty() ? nullptr : find_precision(match.computes_as);
  return found != nullptr && found->results != Rounded::kNone;
}

Result<Identification> StepsJudge::identify_made(std::vector<ProbedState>& states,
                                                 int64_t screened) {
  const std::vector<ProbedState> kept = states;  // includes those that are set aside
  IdentifyOptions with_history = o_;
  with_history.history = &kept;
  IdentifyOptions o = with_history;
  const auto judged = static_cast<double>(states.size());
  o.false_alarm *= std::min(1.0, judged / static_cast<double>(std::max<int64_t>(1, screened)));
  o.explain = false;
  TWINRUN_ASSIGN(Identification all, identify_program(e_, asked_, engine_, states, o));
  const bool seen =
      std::ranges::none_of(states, [](const ProbedState& s) { return s.after.empty(); });
  for (int turn = 0; turn < kTurns && seen && !all.outside.empty(); ++turn) {
    TWINRUN_ASSIGN(const std::vector<int64_t> aside, decided(all.outside, all.held, states, {}, o));
    if (aside.empty()) break;
    erase_steps(states, aside);
    set_aside_ += static_cast<int64_t>(aside.size());
    if (states.empty()) {
      all.outcome = Identification::Outcome::kInside;
      all.outside.clear();
      break;
    }
    TWINRUN_ASSIGN(all, identify_program(e_, asked_, engine_, states, o));
  }
  all.false_alarm = o_.false_alarm;
  outside_ = steps_of(all.outside);
  if (all.outcome == Identification::Outcome::kInside && !all.held.tight && o_.formulas) {
    TWINRUN_ASSIGN(std::optional<Identification> exact, by_formula(states));
    if (exact) {
      outside_ = steps_of(exact->outside);
      return std::move(*exact);
    }
  }
  if (all.outcome != Identification::Outcome::kUnexplained || all.outside.empty()) return all;
  const std::vector<ProbedState> few = three_of(states, all.outside.front().step);
  o.explain = true;
  // A program with two causes differs at most steps: try pairs only where many are outside.
  o.pairs = o_.pairs && 4 * outside_.size() >= states.size();
  TWINRUN_ASSIGN(Identification tried, identify_program(e_, asked_, engine_, few, o));
  tried.false_alarm = o_.false_alarm;
  if (tried.outcome == Identification::Outcome::kInside) {
    // With fewer steps nothing may be outside. The mismatch stands, but only all steps can explain
    // it.
    constexpr double kPrograms = 2 * 200;  // of two members each
    const double cost = kPrograms * static_cast<double>(states.size()) * search_cost(asked_);
    if (!o_.formulas || cost > kSearchBudget) return all;
    o.pairs = false;
    TWINRUN_ASSIGN(tried, identify_program(e_, asked_, engine_, states, o));
    tried.false_alarm = o_.false_alarm;
    if (tried.outcome != Identification::Outcome::kExplained) return all;
  }
  if (tried.outcome == Identification::Outcome::kExplained)
    TWINRUN_RETURN_IF_ERROR(keep_what_holds(tried, states, all.outside.size(), with_history));
  TWINRUN_RETURN_IF_ERROR(keep_undeclared(tried, states, with_history));
  take_as_harmless(tried, states.size());
  if (tried.harmless) outside_.clear();
  return tried;
}

// Rounded results leave room for a formula that is off by less. But an engine that computes in
// binary32, or in its declared precision, lies in the narrow envelope of that formula, where
// rounded results would not put it.
Result<std::optional<Identification>> StepsJudge::by_formula(
    const std::vector<ProbedState>& states) const {
  IdentifyOptions o = o_;
  o.pairs = false;
  o.history = &states;
  const std::vector<ProbedState> few = three_of(states, states[states.size() / 2].step);
  const auto declared = declared_precision(declared_);
  for (PrecisionClass& c : all_classes(declared_, asked_)) {
    const bool whole = c.precision == Precision::kF32;
    if (!c.tight || !(whole || c.precision == declared)) continue;
    o.only = std::move(c);
    TWINRUN_ASSIGN(Identification tried, identify_program(e_, asked_, engine_, few, o));
    if (tried.outcome != Identification::Outcome::kExplained) continue;
    TWINRUN_RETURN_IF_ERROR(keep_what_holds(tried, states, std::numeric_limits<size_t>::max(), o));
    if (tried.outcome != Identification::Outcome::kExplained) continue;
    take_as_harmless(tried, states.size());
    return std::optional(std::move(tried));
  }
  return std::optional<Identification>();
}

// An explanation of three steps must explain all steps that were judged. If it does not, it is
// reported with what it leaves (`beside`), where that is at most half of what was outside.
Status StepsJudge::keep_what_holds(Identification& tried, const std::vector<ProbedState>& states,
                                   size_t were_outside, const IdentifyOptions& options) const {
  std::vector<Explanation> hold;
  for (const Explanation& explanation : tried.explanations) {
    TWINRUN_ASSIGN(std::vector<TensorMismatch> left,
                   outside_of(e_, asked_, engine_, states, explanation.parts, tried.held, options));
    std::vector<ProbedState> undecided = states;
    for (int turn = 0; turn < kTurns && !left.empty(); ++turn) {
      TWINRUN_ASSIGN(const std::vector<int64_t> aside,
                     decided(left, tried.held, undecided, explanation.parts, options));
      if (aside.empty() || aside.size() == undecided.size()) break;
      erase_steps(undecided, aside);
      TWINRUN_ASSIGN(
          left, outside_of(e_, asked_, engine_, undecided, explanation.parts, tried.held, options));
    }
    if (left.empty()) {
      hold.push_back(explanation);
    } else if (!tried.beside && !has_free_rates(explanation.parts) &&
               left.size() <= were_outside / 2) {
      tried.beside = explanation;
      tried.outside = std::move(left);
    }
  }
  if (hold.empty()) {
    tried.explanations.clear();
    tried.outcome = Identification::Outcome::kUnexplained;
    return Ok{};
  }
  tried.explanations = std::move(hold);
  tried.beside.reset();
  return Ok{};
}

// Three steps may have room for roundings that all go one way. Over all steps only something like a
// term that a script adds to its loss does so, and no precision explains it.
Status StepsJudge::keep_undeclared(Identification& tried, const std::vector<ProbedState>& states,
                                   const IdentifyOptions& options) const {
  if (tried.undeclared.empty() || tried.in_its_numbers) return Ok{};
  IdentifyOptions all = options;
  all.explain = false;
  all.only = class_of(tried.computes_as, tried.undeclared, declared_, asked_);
  if (!all.only) return Ok{};
  TWINRUN_ASSIGN(const Identification held, identify_program(e_, asked_, engine_, states, all));
  if (held.outcome == Identification::Outcome::kUnexplained) take_as_declared(tried);
  return Ok{};
}

// The single variable that, when it alone starts as in `other`, takes the reference to the
// subject's end; nullopt: there is none.
Result<std::optional<size_t>> StepsJudge::makes_the_difference(Engine& reference,
                                                               const ProbedState& at,
                                                               const States& other) const {
  constexpr double kOfReported = 0.1;
  // The distance from the subject's end, each variable in units of its change.
  const auto misses = [&](const States& start) -> Result<double> {
    TWINRUN_ASSIGN(const StepResult r, one_step(e_, reference, at.step, start));
    double sum = 0;
    for (size_t i = 0; i < asked_.state.size(); ++i) {
      if (!is_updated(asked_.state[i])) continue;
      for (size_t k = 0; k < start.size(); ++k) {
        const std::vector<double> is = as_doubles(at.after[k].vars[i]);
        const double change = distance(is, as_doubles(at.states[k].vars[i]));
        if (change > 0) sum += distance(is, as_doubles(r.after[k].vars[i])) / change;
      }
    }
    return sum;
  };
  std::optional<size_t> best;
  TWINRUN_ASSIGN(double least, misses(at.states));
  least *= kOfReported;
  for (size_t i = 0; i < asked_.state.size(); ++i) {
    if (!is_updated(asked_.state[i])) continue;
    States start = at.states;
    for (size_t k = 0; k < start.size(); ++k) start[k].vars[i] = other[k].vars[i];
    TWINRUN_ASSIGN(const double left, misses(start));
    if (!(left < least)) continue;
    least = left;
    best = i;
  }
  return best;
}

Result<std::optional<OtherStart>> StepsJudge::other_start(const Identification& match,
                                                          const std::vector<ProbedState>& states) {
  std::optional<OtherStart> none;
  if (match.outcome != Identification::Outcome::kUnexplained || match.outside.empty() ||
      !match.undeclared.empty())
    return none;
  const int64_t step = match.outside.front().step;
  // Only values that were computed from the state show that it was a different one: an update alone
  // may just have written other values.
  const bool computed = std::ranges::any_of(match.outside, [&](const TensorMismatch& m) {
    return m.step == step && !m.is_state && !m.all_steps;
  });
  const auto found = std::ranges::find(states, step, &ProbedState::step);
  if (!computed || step == 0 || found == states.end() || found->after.empty()) return none;
  TWINRUN_ASSIGN(const auto reference, reference_of(e_, asked_, declared_, o_.threads));
  // Solve for the state from which the reference ends where the subject did: each turn corrects it
  // by the remaining difference.
  ProbedState other = *found;
  for (int turn = 0; turn < kTowardsStart; ++turn) {
    TWINRUN_ASSIGN(const StepResult r, one_step(e_, *reference, step, other.states));
    for (size_t i = 0; i < asked_.state.size(); ++i) {
      if (!is_updated(asked_.state[i])) continue;
      for (size_t k = 0; k < other.states.size(); ++k) {
        Tensor start = other.states[k].vars[i].clone();
        const float *expected = r.after[k].vars[i].as<float>().data(),
                    *is = found->after[k].vars[i].as<float>().data();
        for (size_t n = 0; n < start.as<float>().size(); ++n)
          start.as<float>()[n] += is[n] - expected[n];
        other.states[k].vars[i] = start;
      }
    }
  }
  IdentifyOptions o = o_;
  o.explain = false;
  TWINRUN_ASSIGN(const Identification from_there,
                 identify_program(e_, asked_, engine_, {other}, o));
  if (from_there.outcome != Identification::Outcome::kInside) return none;
  OtherStart out;
  out.step = step;
  double most = 0;
  // A variable from which nothing follows (a velocity without momentum) may start anywhere: prefer
  // the one that makes the difference alone.
  TWINRUN_ASSIGN(const auto alone, makes_the_difference(*reference, *found, other.states));
  for (size_t i = 0; i < asked_.state.size(); ++i) {
    if (!is_updated(asked_.state[i])) continue;
    if (alone && *alone != i) continue;
    for (size_t k = 0; k < other.states.size(); ++k) {
      const std::vector<double> used = as_doubles(other.states[k].vars[i]),
                                reported = as_doubles(found->states[k].vars[i]);
      const double size = norm(reported), gap = distance(used, reported);
      const double share = size > 0 ? gap / size : gap > 0 ? INFINITY : 0;
      if (!(share > most)) continue;
      most = share;
      out.variable = asked_.state[i].name;
      out.replica = static_cast<int>(k);
      // The elements that make up all of the distance but a thousandth.
      std::vector<size_t> at(used.size());
      for (size_t n = 0; n < at.size(); ++n) at[n] = n;
      std::ranges::stable_sort(at, std::greater<>(),
                               [&](size_t n) { return std::fabs(used[n] - reported[n]); });
      size_t count = 0;
      for (double left = gap * gap; count < at.size() && left > 1e-6 * gap * gap; ++count) {
        const double d = used[at[count]] - reported[at[count]];
        left -= d * d;
      }
      const std::vector<int64_t>& dims = asked_.state[i].type.dims;
      out.elements =
          fmt::format("{} of {} elements, {}{}: {:.9g} in use where {:.9g} was reported", count,
                      used.size(), count > 1 ? "most at " : "",
                      index_text(dims, static_cast<int64_t>(at[0])), used[at[0]], reported[at[0]]);
    }
  }
  // No variable differs: the start that was found is the reported state.
  if (out.variable.empty()) return none;
  return std::optional(out);
}

Result<std::optional<bool>> StepsJudge::inside_again(const Identification& match,
                                                     const std::vector<ProbedState>& states) {
  std::optional<bool> none;
  if (match.outcome != Identification::Outcome::kUnexplained || match.outside.empty() ||
      match.outside.front().all_steps || !match.undeclared.empty())
    return none;
  const auto found = std::ranges::find(states, match.outside.front().step, &ProbedState::step);
  if (found == states.end()) return none;
  IdentifyOptions o = o_;
  o.explain = false;
  TWINRUN_ASSIGN(const Identification again,
                 identify_program(e_, asked_, engine_, {{found->step, found->states}}, o));
  return std::optional(again.outcome == Identification::Outcome::kInside);
}

Result<std::optional<HiddenState>> StepsJudge::reload(const Identification& match,
                                                      const std::vector<ProbedState>& states,
                                                      const std::vector<int64_t>& sampled,
                                                      bool repeats) {
  std::vector<ProbedState> probed;
  for (const ProbedState& state : states) {
    // A step that is outside is judged elsewhere.
    if (state.step > 0 && !state.after.empty() &&
        std::ranges::find(sampled, state.step) != sampled.end() &&
        std::ranges::find(outside_, state.step) == outside_.end())
      probed.push_back(state);
  }
  std::optional<HiddenState> none;
  // Keep kReloads states from the middle of the run: there, counters that a script keeps itself are
  // far from their initial values.
  while (static_cast<int64_t>(probed.size()) > kReloads)
    probed.erase(probed.size() % 2 == 0 ? probed.begin() : probed.end() - 1);
  if (probed.empty()) return none;
  const std::vector<Compared> tensors = ordered(
      asked_, o_.max_elements / static_cast<int64_t>(probed.size()) / asked_.sharding.cores);
  std::vector<ProbedState> again = probed;
  for (ProbedState& state : again) {
    state.after.clear();
    state.outputs.clear();
  }
  TWINRUN_ASSIGN(const auto engine, engine_.prepare(asked_));
  TWINRUN_ASSIGN(const Observed run, observe(e_, nullptr, asked_, tensors, probed));
  TWINRUN_ASSIGN(const Observed one, observe(e_, engine.get(), asked_, tensors, again));
  const size_t stride = tensors.size() * run.replicas;
  // A fresh loss scale may be too large for the step, which is then skipped: that shows nothing.
  const auto left_out = [&](size_t state) {
    return std::ranges::any_of(
        one.values.begin() + static_cast<std::ptrdiff_t>(state * stride),
        one.values.begin() + static_cast<std::ptrdiff_t>((state + 1) * stride),
        [](const Value& value) {
          return !std::ranges::all_of(*value.data, [](float x) { return std::isfinite(x); });
        });
  };
  const auto differs = [&](size_t v) {
    return *run.values[v].data != *one.values[v].data && !left_out(v / stride);
  };
  std::vector<size_t> other;
  for (size_t v = 0; v < run.values.size(); ++v) {
    if (differs(v)) other.push_back(v);
  }
  if (other.empty()) return none;
  TWINRUN_ASSIGN(const Observed two, observe(e_, engine.get(), asked_, tensors, again));
  TWINRUN_ASSIGN(const std::vector<Observed> conforming,
                 members(probed, tensors, o_.many, match.held));
  const Envelope around = envelope_of(conforming, slack_);
  std::vector<size_t> beyond = other;
  std::erase_if(beyond, [&](size_t v) {
    const Envelope::Around& there = around.values[v];
    const Envelope::Range& range = there.looks[static_cast<size_t>(Look::kDistance)];
    const double apart = gap2(*run.values[v].data, *one.values[v].data);
    // Two conforming runs are each as far from the mean. A subject that differs from itself every
    // time has no hidden state, unless it promises to repeat itself; then one that once resumes to
    // the step of its run has none.
    return !there.finite || !there.known(0.5) || apart <= 2 * kBeyondMembers * range.largest ||
           apart <= match.threshold * range.spread ||
           (repeats ? apart > 2 * gap2(*run.values[v].data, *two.values[v].data)
                    : apart <= 2 * gap2(*one.values[v].data, *two.values[v].data));
  });
  if (!repeats && beyond.empty()) return none;
  const bool promised = beyond.empty();
  if (!promised) other = std::move(beyond);
  const size_t v = other.front();
  HiddenState h;
  h.step = probed[v / run.replicas / tensors.size()].step;
  h.tensor = tensors[v / run.replicas % tensors.size()].tensor;
  h.replica = static_cast<int>(v % run.replicas);
  const double size = norm2(*run.values[v].data);
  const double apart = gap2(*run.values[v].data, *one.values[v].data);
  h.relative = size > 0 ? apart / size : INFINITY;
  h.promised = promised;
  h.probed = static_cast<int64_t>(probed.size());
  return std::optional(h);
}

Result<std::optional<ReplicaSplit>> StepsJudge::split_replicas(
    const std::vector<ProbedState>& states) {
  std::optional<ReplicaSplit> none;
  if (asked_.sharding.cores < 2) return none;
  const std::vector<bool> alike = uniform_values(asked_);
  // What follows from one gradient is computed in binary32, whatever operands of products are
  // rounded to.
  const PrecisionClass whole;
  for (const ProbedState& state : states) {
    if (state.after.empty()) continue;
    const std::vector<ProbedState> one{state};
    std::vector<Observed> conforming;
    const std::vector<Compared> tensors = ordered(asked_, kAllElements);
    for (size_t t = 0; t < tensors.size(); ++t) {
      const Compared& c = tensors[t];
      if (!c.is_state || !alike[static_cast<size_t>(c.id)]) continue;
      std::vector<std::vector<double>> changes;
      bool same = true;
      for (size_t k = 0; k < state.after.size(); ++k) {
        const Tensor &b = state.states[k].vars[c.index], &a = state.after[k].vars[c.index];
        same = same && a.same_bits(state.after[0].vars[c.index]) &&
               b.same_bits(state.states[0].vars[c.index]);
        changes.push_back(change(b, a));
      }
      if (same) continue;
      // The replica that is farthest from all others; of two, either will do for now.
      size_t odd = 0;
      double farthest = -1, apart = 0;
      for (size_t k = 0; k < changes.size(); ++k) {
        double sum = 0;
        for (size_t other = 0; other < changes.size(); ++other) {
          const double d = distance(changes[k], changes[other]);
          sum += d;
          apart = std::max(apart, d);
        }
        if (sum > farthest) {
          farthest = sum;
          odd = k;
        }
      }
      const double rounding = kOfUpdate * norm(as_doubles(state.after[odd].vars[c.index]));
      if (apart <= rounding) continue;
      if (conforming.empty()) {
        TWINRUN_ASSIGN(conforming, members(one, tensors, o_.few, whole));
      }
      double largest = 0, expected = 0;
      for (const Observed& a : conforming) {
        const std::vector<float>& x = *a.values[t * a.replicas + odd].data;
        expected = std::max(expected, norm2(x));
        for (const Observed& b : conforming)
          largest = std::max(largest, gap2(x, *b.values[t * b.replicas + odd].data));
      }
      const double allowed = kBeyondMembers * largest + rounding;
      if (!(apart > allowed)) continue;
      if (changes.size() == 2) {
        // Of two, the odd one is farther from conforming engines.
        const auto off = [&](size_t k) {
          const std::vector<float>& x =
              *conforming.front().values[t * conforming.front().replicas + k].data;
          return distance(changes[k], std::vector<double>(x.begin(), x.end()));
        };
        odd = off(1) > off(0) ? 1 : 0;
      }
      ReplicaSplit split{
          c.tensor, state.step, static_cast<int>(odd), expected > 0 ? apart / expected : INFINITY,
          apart,    allowed};
      const States& last = states.back().after;
      for (const ReplicaState& replica : last)
        split.for_good = split.for_good || !replica.vars[c.index].same_bits(last[0].vars[c.index]);
      return std::optional(split);
    }
  }
  return none;
}

}  // namespace twinrun
