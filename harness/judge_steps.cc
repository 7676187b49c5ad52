// The judgement of kept steps: decisions, other starts, resumed steps, replicas.
#include "harness/judge_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "backends/variants/variant.h"
#include "harness/links.h"
#include "harness/matching_fit.h"
#include "harness/one_step.h"
#include "harness/pattern.h"
#include "harness/pipeline.h"
#include "harness/screen_steps.h"

namespace twinrun {
namespace {

// Where a step alone is outside, honest engines are asked once more, from weights that are moved this many times further: whatever
// decision lies within the subject's own rounding then falls the other way in about half of them.
constexpr double kFurther = 16;
constexpr int kDeciders = 16;  // none of so many falls so with probability 2^-16
constexpr int64_t kReloads = 2;
constexpr int kTowardsStart = 6;
// What a replica's own update may round: two roundings of what is stored, either way.
constexpr double kOfUpdate = 0x1p-22;

const MatchState& at_step(const std::vector<MatchState>& states, int64_t step) {
  return *std::ranges::find(states, step, &MatchState::step);
}

std::vector<int64_t> steps_of(const std::vector<TensorMismatch>& outside) {
  std::set<int64_t> steps;
  for (const TensorMismatch& m : outside) steps.insert(m.step);
  return {steps.begin(), steps.end()};
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

double norm(const std::vector<double>& a) {
  double sum = 0;
  for (const double x : a) sum += x * x;
  return std::sqrt(sum);
}

// In the order of computation.
std::vector<Compared> ordered(const Program& program, int64_t most) {
  std::vector<Compared> out = compared_tensors(program, most);
  std::ranges::stable_sort(out, {}, &Compared::id);
  return out;
}

}  // namespace

StepsJudge::StepsJudge(const Experiment& e, const Program& asked, Backend& engine, MatchOptions o)
    : e_(e), asked_(asked), engine_(engine), o_(std::move(o)), declared_(engine.capabilities()) {
  if (!declared_.ours) slack_ = settings_slack(e);
}

// Of honest engines of one class of precision, each from weights that are moved `further` than the ensemble's.
Result<std::vector<Observed>> StepsJudge::members(const std::vector<MatchState>& states,
                                                  const std::vector<Compared>& tensors, int count,
                                                  double further, const PrecisionClass& of) const {
  std::vector<Observed> out;
  const double move = further * weight_move(asked_, of);
  for (int k = 0; k < count; ++k) {
    // Odd numbers are those that are moved; of the ensemble's own, every second one is.
    const uint64_t number =
        further > 1 ? 2 * static_cast<uint64_t>(k) + 1001 : static_cast<uint64_t>(k) + 1;
    const auto backend = member_of(of, number, declared_, backend_options(e_.scenario, o_.threads));
    TWINRUN_ASSIGN(const auto engine, backend->prepare(asked_));
    TWINRUN_ASSIGN(Observed o, observe(e_, engine.get(), asked_, tensors, states, number, move));
    out.push_back(std::move(o));
  }
  return out;
}

// Steps that are outside but for a decision that falls either way.
Result<std::vector<int64_t>> StepsJudge::decided(const MatchResult& match,
                                                 const std::vector<MatchState>& states) const {
  std::vector<MatchState> alone;
  for (const int64_t step : steps_of(match.outside)) {
    const bool together = std::ranges::any_of(
        match.outside, [&](const TensorMismatch& m) { return m.step == step && m.all_steps; });
    if (!together) alone.push_back(at_step(states, step));
  }
  // What is outside at most steps does not hang on any decision.
  std::vector<int64_t> out;
  if (alone.empty() || 2 * alone.size() > states.size()) return out;
  const std::vector<Compared> tensors = compared_tensors(
      asked_, o_.most_elements / static_cast<int64_t>(alone.size()) / asked_.sharding.cores);
  TWINRUN_ASSIGN(const std::vector<Observed> further,
                 members(alone, tensors, kDeciders, kFurther, match.held));
  TWINRUN_ASSIGN(const Observed subject, observe(e_, nullptr, asked_, tensors, alone));
  std::set<int64_t> stand;
  for (const Distance& d : distances(subject, envelope_of(further, slack_))) {
    if (d.look == Look::kSizes || d.look == Look::kStoreds) continue;
    const int64_t step = alone[d.value / subject.replicas / tensors.size()].step;
    const std::string& tensor = tensors[d.value / subject.replicas % tensors.size()].tensor;
    const bool accused = std::ranges::any_of(match.outside, [&](const TensorMismatch& m) {
      return m.step == step && m.tensor == tensor &&
             m.replica == static_cast<int>(d.value % subject.replicas);
    });
    if (accused && beyond(d)) stand.insert(step);
  }
  for (const MatchState& state : alone) {
    if (!stand.contains(state.step)) out.push_back(state.step);
  }
  return out;
}

Result<MatchResult> StepsJudge::match(std::vector<MatchState>& states, int64_t screened) {
  MatchOptions o = o_;
  const auto judged = static_cast<double>(states.size());
  o.false_alarm *= std::min(1.0, judged / static_cast<double>(std::max<int64_t>(1, screened)));
  o.explain = false;
  TWINRUN_ASSIGN(MatchResult all, match_subject(e_, asked_, engine_, states, o));
  const bool seen =
      std::ranges::none_of(states, [](const MatchState& s) { return s.after.empty(); });
  // Each turn leaves fewer steps; what is then compared together may still be outside.
  for (int turn = 0; turn < 3 && seen && !all.outside.empty(); ++turn) {
    TWINRUN_ASSIGN(const std::vector<int64_t> aside, decided(all, states));
    if (aside.empty() || aside.size() == states.size()) break;
    std::erase_if(states, [&](const MatchState& s) {
      return std::ranges::find(aside, s.step) != aside.end();
    });
    set_aside_ += static_cast<int64_t>(aside.size());
    TWINRUN_ASSIGN(all, match_subject(e_, asked_, engine_, states, o));
  }
  all.false_alarm = o_.false_alarm;
  outside_ = steps_of(all.outside);
  if (all.outcome != MatchResult::Outcome::kUnexplained || all.outside.empty()) return all;
  std::vector<MatchState> few;
  for (const MatchState& state : states) {
    if (state.step == all.outside.front().step || &state == &states.front() ||
        &state == &states.back())
      few.push_back(state);
  }
  o.explain = true;
  o.history = &states;
  // A program of two causes is another one at most steps.
  o.pairs = o_.pairs && 4 * outside_.size() >= states.size();
  TWINRUN_ASSIGN(MatchResult tried, match_subject(e_, asked_, engine_, few, o));
  tried.false_alarm = o_.false_alarm;
  // Fewer steps may leave nothing outside; what was seen stands.
  if (tried.outcome == MatchResult::Outcome::kInside) return all;
  if (tried.outcome == MatchResult::Outcome::kExplained)
    TWINRUN_RETURN_IF_ERROR(keep_what_holds(tried, states));
  if (tried.outcome == MatchResult::Outcome::kExplained && tried.explanations.front().harmless()) {
    tried.outcome = MatchResult::Outcome::kInside;
    tried.harmless = tried.explanations.front();
    tried.ratio = tried.harmless->ratio;
    tried.states = static_cast<int64_t>(states.size());
    tried.explanations.clear();
    tried.outside.clear();
    tried.twins.clear();
    outside_.clear();
  }
  return tried;
}

// What explains three steps must explain all that were judged. Of an explanation that does not, what it leaves is told beside it.
Status StepsJudge::keep_what_holds(MatchResult& tried, const std::vector<MatchState>& states) {
  std::vector<Explanation> hold;
  for (const Explanation& explanation : tried.explanations) {
    TWINRUN_ASSIGN(std::vector<TensorMismatch> left,
                   outside_of(e_, asked_, engine_, states, explanation.parts, o_));
    if (left.empty()) {
      hold.push_back(explanation);
    } else if (!tried.beside) {
      tried.beside = explanation;
      tried.outside = std::move(left);
    }
  }
  if (hold.empty()) {
    tried.explanations.clear();
    tried.outcome = MatchResult::Outcome::kUnexplained;
    return Ok{};
  }
  tried.explanations = std::move(hold);
  tried.beside.reset();
  return Ok{};
}

Result<std::optional<OtherStart>> StepsJudge::other_start(const MatchResult& match,
                                                          const std::vector<MatchState>& states) {
  std::optional<OtherStart> none;
  if (match.outcome != MatchResult::Outcome::kUnexplained || match.outside.empty() ||
      !match.undeclared.empty())
    return none;
  const int64_t step = match.outside.front().step;
  // The update alone may have written something else: only what was computed from the state tells that it was another one.
  const bool computed = std::ranges::any_of(match.outside, [&](const TensorMismatch& m) {
    return m.step == step && !m.is_state && !m.all_steps;
  });
  const auto found = std::ranges::find(states, step, &MatchState::step);
  if (!computed || step == 0 || found == states.end() || found->after.empty()) return none;
  TWINRUN_ASSIGN(const auto reference, reference_of(e_, asked_, declared_, o_.threads));
  // Towards the state from which the reference ends where the subject did: each turn corrects it by what is still missing.
  MatchState other = *found;
  for (int turn = 0; turn < kTowardsStart; ++turn) {
    TWINRUN_ASSIGN(const StepResult r, one_step(e_, *reference, step, other.states));
    for (size_t i = 0; i < asked_.state.size(); ++i) {
      if (asked_.state[i].type.dtype != DType::kF32 || asked_.state[i].next == kNoValue) continue;
      for (size_t k = 0; k < other.states.size(); ++k) {
        Tensor start = other.states[k].vars[i].clone();
        const float *due = r.after[k].vars[i].as<float>().data(),
                    *is = found->after[k].vars[i].as<float>().data();
        for (size_t n = 0; n < start.as<float>().size(); ++n)
          start.as<float>()[n] += is[n] - due[n];
        other.states[k].vars[i] = start;
      }
    }
  }
  MatchOptions o = o_;
  o.explain = false;
  TWINRUN_ASSIGN(const MatchResult from_there, match_subject(e_, asked_, engine_, {other}, o));
  if (from_there.outcome != MatchResult::Outcome::kInside) return none;
  OtherStart out;
  out.step = step;
  double most = 0;
  for (size_t i = 0; i < asked_.state.size(); ++i) {
    if (asked_.state[i].type.dtype != DType::kF32 || asked_.state[i].next == kNoValue) continue;
    for (size_t k = 0; k < other.states.size(); ++k) {
      const std::vector<double> used = as_doubles(other.states[k].vars[i]),
                                reported = as_doubles(found->states[k].vars[i]);
      const double size = norm(reported), gap = distance(used, reported);
      const double share = size > 0 ? gap / size : gap > 0 ? INFINITY : 0;
      if (!(share > most)) continue;
      most = share;
      out.variable = asked_.state[i].name;
      out.replica = static_cast<int>(k);
      // The elements that make all of the distance but a thousandth.
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
  if (out.variable.empty())
    return none;  // the same state, but for what the pieces of it do not tell
  return std::optional(out);
}

Result<std::optional<bool>> StepsJudge::inside_again(const MatchResult& match,
                                                     const std::vector<MatchState>& states) {
  std::optional<bool> none;
  if (match.outcome != MatchResult::Outcome::kUnexplained || match.outside.empty() ||
      match.outside.front().all_steps || !match.undeclared.empty())
    return none;
  const auto found = std::ranges::find(states, match.outside.front().step, &MatchState::step);
  if (found == states.end()) return none;
  MatchOptions o = o_;
  o.explain = false;
  TWINRUN_ASSIGN(const MatchResult again,
                 match_subject(e_, asked_, engine_, {{found->step, found->states}}, o));
  return std::optional(again.outcome == MatchResult::Outcome::kInside);
}

Result<std::optional<HiddenState>> StepsJudge::reload(const MatchResult& match,
                                                      const std::vector<MatchState>& states,
                                                      const std::vector<int64_t>& sampled,
                                                      bool repeats) {
  std::vector<MatchState> probed;
  for (const MatchState& state : states) {
    // A step that is outside is another matter.
    if (state.step > 0 && !state.after.empty() &&
        std::ranges::find(sampled, state.step) != sampled.end() &&
        std::ranges::find(outside_, state.step) == outside_.end())
      probed.push_back(state);
  }
  std::optional<HiddenState> none;
  // Two in the middle of the run, where a script's own counters are far from where they began.
  while (static_cast<int64_t>(probed.size()) > kReloads)
    probed.erase(probed.size() % 2 == 0 ? probed.begin() : probed.end() - 1);
  if (probed.empty()) return none;
  const std::vector<Compared> tensors = ordered(
      asked_, o_.most_elements / static_cast<int64_t>(probed.size()) / asked_.sharding.cores);
  std::vector<MatchState> again = probed;
  for (MatchState& state : again) {
    state.after.clear();
    state.outputs.clear();
  }
  TWINRUN_ASSIGN(const auto engine, engine_.prepare(asked_));
  TWINRUN_ASSIGN(const Observed run, observe(e_, nullptr, asked_, tensors, probed));
  TWINRUN_ASSIGN(const Observed one, observe(e_, engine.get(), asked_, tensors, again));
  const auto differs = [&](size_t v) { return *run.values[v].data != *one.values[v].data; };
  std::vector<size_t> other;
  for (size_t v = 0; v < run.values.size(); ++v) {
    if (differs(v)) other.push_back(v);
  }
  if (other.empty()) return none;
  if (!repeats) {
    TWINRUN_ASSIGN(const Observed two, observe(e_, engine.get(), asked_, tensors, again));
    TWINRUN_ASSIGN(const std::vector<Observed> honest,
                   members(probed, tensors, o_.many, 1, match.held));
    const Envelope around = envelope_of(honest, slack_);
    std::erase_if(other, [&](size_t v) {
      const Envelope::Around& there = around.values[v];
      const Envelope::Range& range = there.looks[static_cast<size_t>(Look::kDistance)];
      const double apart = gap2(*run.values[v].data, *one.values[v].data);
      // Two honest runs are each as far from the mean; and a subject that differs from itself every time has no state that is hidden.
      return !there.finite || !there.known(0.5) || apart <= 2 * kBeyondMembers * range.largest ||
             apart <= match.threshold * range.spread ||
             apart <= 2 * gap2(*one.values[v].data, *two.values[v].data);
    });
    if (other.empty()) return none;
  }
  const size_t v = other.front();
  HiddenState h;
  h.step = probed[v / run.replicas / tensors.size()].step;
  h.tensor = tensors[v / run.replicas % tensors.size()].tensor;
  h.replica = static_cast<int>(v % run.replicas);
  const double size = norm2(*run.values[v].data);
  const double apart = gap2(*run.values[v].data, *one.values[v].data);
  h.relative = size > 0 ? apart / size : INFINITY;
  h.promised = repeats;
  h.probed = static_cast<int64_t>(probed.size());
  return std::optional(h);
}

Result<std::optional<ReplicaSplit>> StepsJudge::split_replicas(
    const std::vector<MatchState>& states) {
  std::optional<ReplicaSplit> none;
  if (asked_.sharding.cores < 2) return none;
  const std::vector<bool> alike = uniform_values(asked_);
  // What one gradient gives is computed in binary32, whatever the operands of products are rounded to.
  const PrecisionClass whole;
  for (const MatchState& state : states) {
    if (state.after.empty()) continue;
    const std::vector<MatchState> one{state};
    std::vector<Observed> honest;
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
      // The one that is farthest from all others; of two, the one that changed less or not at all is as good.
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
      if (honest.empty()) {
        TWINRUN_ASSIGN(honest, members(one, tensors, o_.few, 1, whole));
      }
      double largest = 0, due = 0;
      for (const Observed& a : honest) {
        const std::vector<float>& x = *a.values[t * a.replicas + odd].data;
        due = std::max(due, norm2(x));
        for (const Observed& b : honest)
          largest = std::max(largest, gap2(x, *b.values[t * b.replicas + odd].data));
      }
      const double allowed = kBeyondMembers * largest + rounding;
      if (!(apart > allowed)) continue;
      if (changes.size() == 2) {
        // Of two, the one that is farther from what honest engines do.
        const auto off = [&](size_t k) {
          const std::vector<float>& x =
              *honest.front().values[t * honest.front().replicas + k].data;
          return distance(changes[k], std::vector<double>(x.begin(), x.end()));
        };
        odd = off(1) > off(0) ? 1 : 0;
      }
      ReplicaSplit split{
          c.tensor, state.step, static_cast<int>(odd), due > 0 ? apart / due : INFINITY,
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
