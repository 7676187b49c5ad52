// The search for the program that a subject executed: single changes of the requested program
// (causes of sharding, formulas, what harness/identify/formula_fit.h reads from the tensors), then
// pairs of them, each compared with the subject. For identify.cc.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "harness/identify/assignment_fit.h"
#include "harness/identify/formula_fit.h"
#include "program/graph/liveness.h"

namespace twinrun {

inline constexpr size_t kMaxTried = 12;

// An explanation must reduce the subject's largest ratio at least by this factor.
inline constexpr double kExplains = 1.5;

// Pairs of changes of the catalogues: those that bring the subject nearest by themselves, so many,
// are each combined with every other change, within kSearchBudget.
inline constexpr size_t kMaxOfPairs = 6;
// The largest cost (search_cost) of replaying a script's private state over the run, for each of
// its programs.
inline constexpr double kReplayBudget = 5e10;

// Larger ratios carry no more information.
inline constexpr double kMaxRatio = 1e12;

// A program that the subject may have run in place of the requested one.
struct Hypothesis {
  std::vector<Explanation::Part> parts;
  Program program;
  std::shared_ptr<const Experiment> experiment = nullptr;  // supplies the program's feed
  StateMap map;                                            // onto the requested program's state
  std::vector<Observed> members = {};
  double score = 0;  // sum of the ratios' logarithms in an envelope of two: how much is wrong
  int64_t far = 0;   // values that two members rule out
  // The same for the one step that is looked at first.
  double nearness = 0;
  int64_t first_far = 0;
  // It computes NaN or Inf where the subject has numbers, so it is not the subject's program.
  bool broken = false;
};

inline bool is_single(const std::vector<Explanation::Part>& parts) { return parts.size() == 1; }

class ProgramSearch : public FormulaFit {
 protected:
  using FormulaFit::FormulaFit;
  using SubjectFit::add_members;

  Status add_members(Hypothesis& h, int wanted) {
    return add_members(h, states_, subject_, wanted);
  }

  // `subject`: the subject's results from these states.
  Status add_members(Hypothesis& h, const std::vector<ProbedState>& states, const Observed& subject,
                     int wanted) {
    const size_t had = h.members.size();
    TWINRUN_RETURN_IF_ERROR(add_members(fits_[held_].of, h.program, states, wanted, h.members,
                                        h.experiment.get(), &h.map));
    for (size_t m = had; m < h.members.size(); ++m) {
      if (losses_together(h.parts)) h.members[m] = with_mean_losses(h.members[m], tensors_);
      for (size_t v = 0; v < h.members[m].values.size(); ++v) {
        if (!is_compared(h.map, tensors_[place_of(v)])) h.members[m].values[v] = subject.values[v];
      }
    }
    return Ok{};
  }

  // What the changed program lacks is not compared. Neither are powers of a decay that differs: a
  // script may well keep the protocol's counters as they are.
  static bool is_compared(const StateMap& map, const Compared& c) {
    if (!c.is_state) return map.own_of_output[c.index] >= 0;
    const int own = map.own_of_asked[c.index];
    return own >= 0 && map.powers[static_cast<size_t>(own)] == std::pair(0.0, 0.0);
  }

  // Whether any of the tensors that it is compared in is outside for the requested program.
  bool tells(const Hypothesis& h) const {
    return std::ranges::any_of(fits_[held_].found, [&](const Distance& d) {
      return outside(d, fits_[held_].threshold) && is_compared(h.map, tensors_[place_of(d.value)]);
    });
  }

  // nullopt: there is no such program, or its state does not correspond to the requested one's.
  std::optional<Hypothesis> hypothesis(std::vector<Explanation::Part> parts,
                                       bool powers_anew = true) const {
    const Result<ChangedProgram> changed = changed_by(e_, asked_.sharding, parts);
    if (!changed) return std::nullopt;
    const bool formula = std::ranges::any_of(
        parts, [](const Explanation::Part& part) { return part.formula.has_value(); });
    if (changed->experiment == nullptr && changed->sharding == asked_.sharding &&
        !losses_together(parts))
      return std::nullopt;
    try {
      Hypothesis h{std::move(parts), asked_, changed->experiment, {}};
      h.program = formula ? step_of(*changed->experiment, changed->sharding)
                          : reshard(asked_, changed->sharding);
      auto map = map_states(asked_, h.program, e_.scenario.seed, powers_anew);
      if (!map || (map->hides() && !can_replay(h.program))) return std::nullopt;
      h.map = std::move(*map);
      return h;
    } catch (const GraphError&) {
      return std::nullopt;
    }
  }

  Observed comparable(const Observed& subject, const Hypothesis& h) const {
    return losses_together(h.parts) ? with_mean_losses(subject, tensors_) : subject;
  }
  std::vector<Distance> distances_from(const Hypothesis& h) const {
    return distances(comparable(subject_, h), envelope(h.members));
  }

  // Whether the run is known from its first step on and short enough to be replayed.
  bool can_replay(const Program& program) const {
    const std::vector<ProbedState>* history = options_.history;
    if (history == nullptr || history->empty() || history->front().step != 0) return false;
    const double steps = kFirstLook * static_cast<double>(states_.back().step + 1);
    return steps * search_cost(program) <= kReplayBudget;
  }

  // Finds how far the subject is from two members of each candidate. One step rules out most
  // programs: the one in which most is wrong, or the first one, where a script has no private state
  // yet.
  Status look_at(std::vector<Hypothesis>& candidates) {
    const size_t worst = worst_state();
    for (Hypothesis& h : candidates) {
      const bool starts = h.map.hides() && states_.front().step == 0;
      const size_t at = starts ? 0 : worst;
      if (in_binary32()) {
        TWINRUN_RETURN_IF_ERROR(look_by_reference(h, at));
      } else {
        TWINRUN_RETURN_IF_ERROR(look_by_members(h, at));
      }
      if (h.broken || (starts ? h.far > 0 : !few_decisions(h))) continue;
      TWINRUN_RETURN_IF_ERROR(add_members(h, kFirstLook));
      h.broken = breaks(h.members.front(), subject_);
      const std::vector<Distance> all = distances_from(h);
      h.score = logarithms(all);
      h.far = count_far(all);
      if (h.far > 0) h.members.clear();
    }
    return Ok{};
  }

  // Conforming engines of such a class differ only in the order of sums: our reference is one of
  // them, and many times faster.
  bool in_binary32() const {
    const PrecisionClass& of = fits_[held_].of;
    return of.tight && of.reduced_bits >= kF32Bits && !rounds_operands(of);
  }

  static bool breaks(const Value& program, const Value& subject) {
    return std::isfinite(norm2(*subject.data)) && !std::isfinite(norm2(*program.data));
  }
  static bool breaks(const Observed& program, const Observed& subject) {
    for (size_t v = 0; v < subject.values.size(); ++v) {
      if (breaks(program.values[v], subject.values[v])) return true;
    }
    return false;
  }

  // Looks at the step `at` with two members.
  Status look_by_members(Hypothesis& h, size_t at) {
    const Observed seen = of_state(at);
    Hypothesis one = h;
    TWINRUN_RETURN_IF_ERROR(add_members(one, {states_[at]}, seen, kFirstLook));
    h.broken = breaks(one.members.front(), seen);
    const std::vector<Distance> found = distances(comparable(seen, h), envelope(one.members));
    h.score = h.nearness = logarithms(found);
    h.first_far = h.far = count_far(found);
    return Ok{};
  }

  // Looks at the step `at` with the reference: its distance in units of the spread that conforming
  // engines have in the requested program, taken relative to each value's size.
  Status look_by_reference(Hypothesis& h, size_t at) {
    const std::vector<double>& spreads = spreads_at(at);
    const Observed seen = comparable(of_state(at), h);
    TWINRUN_ASSIGN(
        const Observed executed,
        conforming().reference(
            {h.program, {states_[at]}, h.experiment.get(), 1, true, &h.map, options_.history}));
    const Observed expected = comparable(executed, h);
    h.far = 0;
    h.nearness = 0;
    for (size_t v = 0; v < spreads.size(); ++v) {
      if (!is_compared(h.map, tensors_[place_of(v)])) continue;
      h.broken = h.broken || breaks(expected.values[v], seen.values[v]);
      if (spreads[v] < 0) continue;
      const double gap = gap2(*seen.values[v].data, *expected.values[v].data),
                   unit = spreads[v] * norm2(*expected.values[v].data);
      const double ratio = gap == 0 ? 0 : gap / unit;  // NaN where a result is not a number
      h.far += ratio <= kWorthTrying ? 0 : 1;
      h.nearness += std::log10(1 + (ratio < kMaxRatio ? ratio : kMaxRatio));
    }
    h.first_far = h.far;
    h.score = h.nearness;
    return Ok{};
  }

  // By value of a step: the spread of conforming engines in the requested program, as a share of
  // the value's size; -1: the value is rounding alone.
  const std::vector<double>& spreads_at(size_t at) {
    std::vector<double>& out = spreads_[at];
    if (!out.empty()) return out;
    constexpr double kKnown = 0.05, kMin = 0x1p-22;
    const Envelope conforming = envelope(fits_[held_].members);
    const size_t stride = tensors_.size() * subject_.replicas;
    for (size_t v = at * stride; v < (at + 1) * stride; ++v) {
      const Envelope::Around& around = conforming.values[v];
      const double size = norm2(*around.mean);
      const bool known = size == 0 || around.known(kKnown);
      out.push_back(!known ? -1 : size > 0 ? std::max(around.looks[0].spread / size, kMin) : kMin);
    }
    return out;
  }

  static int64_t count_far(const std::vector<Distance>& found) {
    return std::ranges::count_if(found, [](const Distance& d) { return d.ratio > kWorthTrying; });
  }

  size_t state_of(const Distance& d) const {
    return d.value / (tensors_.size() * subject_.replicas);
  }

  // The step in which most of the subject is far from the requested program.
  size_t worst_state() const {
    std::vector<int64_t> far(states_.size());
    for (const Distance& d : fits_[held_].found) {
      if (!of_all_steps(d.look) && d.ratio > kWorthTrying) ++far[state_of(d)];
    }
    return static_cast<size_t>(std::ranges::max_element(far) - far.begin());
  }

  // How much is wrong in that step with the requested program.
  Result<double> nearness_of_asked() {
    const size_t worst = worst_state();
    if (in_binary32()) {
      Hypothesis asked{{}, asked_};
      asked.map = map_states(asked_, asked_, e_.scenario.seed, true).value_or(StateMap{});
      TWINRUN_RETURN_IF_ERROR(look_by_reference(asked, worst));
      return asked.nearness;
    }
    std::vector<Distance> there;
    for (const Distance& d : fits_[held_].found) {
      if (!of_all_steps(d.look) && state_of(d) == worst) there.push_back(d);
    }
    return logarithms(there);
  }

  static double logarithms(const std::vector<Distance>& found) {
    double sum = 0;
    for (const Distance& d : found) sum += std::log10(1 + std::min(d.ratio, kMaxRatio));
    return sum;
  }

  Observed of_state(size_t at) const {
    const auto stride = static_cast<std::ptrdiff_t>(tensors_.size() * subject_.replicas);
    const auto from = subject_.values.begin() + static_cast<std::ptrdiff_t>(at) * stride;
    Observed out;
    out.states = 1;
    out.replicas = subject_.replicas;
    out.values.assign(from, from + stride);
    return out;
  }

  // Whether so few values are far that decisions may explain them. Where a decision depends on
  // rounding (a relu, the sign of a gradient that cancels under Adam), two members that fall alike
  // rule out the right program in the few values that follow from it.
  bool few_decisions(const Hypothesis& h) const {
    constexpr int64_t kOfAll = 20, kOfFar = 4;
    const std::vector<Distance>& found = fits_[held_].found;
    const int64_t far = count_far(found);
    return kOfAll * h.far <= static_cast<int64_t>(found.size()) && kOfFar * h.far <= far;
  }

  // Whether more values than may follow from a decision are ten times as far as any member.
  static bool clearly_outside(const std::vector<Distance>& found) {
    constexpr double kClearly = 10;
    constexpr int64_t kOfAll = 20;
    const auto far = std::ranges::count_if(
        found, [](const Distance& d) { return d.known && d.of_largest > kClearly; });
    return kOfAll * far > static_cast<int64_t>(found.size());
  }

  // Removes from `found` what is outside of a program's members, but not of those that are moved
  // further (kFurther): such a state depends on a decision. What is said of all states together
  // goes with it.
  Status leave_out_decisions(const Hypothesis& h, std::vector<Distance>& found) {
    constexpr int64_t kOfAll = 4;
    if (kOfAll * count_outside(found) > static_cast<int64_t>(found.size())) return Ok{};
    std::vector<Observed> members;
    TWINRUN_RETURN_IF_ERROR(
        add_deciders(fits_[held_].of, h.program, members, h.experiment.get(), &h.map));
    std::set<std::pair<size_t, Look>> inside;
    std::set<size_t> decided;  // places of tensors
    for (const Distance& d : distances(subject_, envelope_of(members, slack_))) {
      if (!beyond(d)) inside.emplace(d.value, d.look);
    }
    const size_t stride = tensors_.size() * subject_.replicas;
    for (const Distance& d : found) {
      if (outside(d) && inside.contains({d.value, d.look}) && !of_all_steps(d.look))
        decided.insert(d.value % stride);
    }
    std::erase_if(found, [&](const Distance& d) {
      return outside(d) && decided.contains(d.value % stride) &&
             (of_all_steps(d.look) || inside.contains({d.value, d.look}));
    });
    return Ok{};
  }

  // Keeps those candidates as explanations whose own envelope contains the subject.
  Status try_all(std::vector<Hypothesis>& candidates) {
    TWINRUN_RETURN_IF_ERROR(look_at(candidates));
    std::vector<Hypothesis> worth;
    for (const Hypothesis& h : candidates) {
      if (h.broken) continue;
      if (h.far == 0 || few_decisions(h)) {
        if (tells(h)) worth.push_back(h);
      } else if (may_stand_beside(h) && (!nearest_ || h.first_far < nearest_->first_far)) {
        nearest_ = h;
      }
    }
    std::ranges::stable_sort(worth, {}, &Hypothesis::score);
    if (worth.size() > kMaxTried) worth.resize(kMaxTried);
    for (Hypothesis& h : worth) {
      TWINRUN_RETURN_IF_ERROR(add_members(h, options_.few));
      if (clearly_outside(distances_from(h))) {
        h.members.clear();
        if (may_stand_beside(h) && (!nearest_ || h.first_far < nearest_->first_far)) nearest_ = h;
        continue;
      }
      TWINRUN_RETURN_IF_ERROR(add_members(h, options_.many));
      std::vector<Distance> found = distances_from(h);
      if (count_outside(found) > 0) TWINRUN_RETURN_IF_ERROR(leave_out_decisions(h, found));
      // A program that means the same rounds differently, and may contain what is only just
      // outside: an explanation must bring the subject clearly nearer.
      if (count_outside(found) == 0 && kExplains * largest(found) <= result_.ratio) {
        result_.explanations.push_back({h.parts, largest(found)});
      } else if (may_stand_beside(h) && (!nearest_ || nearest_->far > 0)) {
        nearest_ = h;
      }
      h.members.clear();
    }
    std::ranges::stable_sort(result_.explanations, {}, &Explanation::ratio);
    return Ok{};
  }

  static bool may_stand_beside(const Hypothesis& h) {
    return is_single(h.parts) && !losses_together(h.parts) && !has_free_rates(h.parts);
  }

  // ---- causes of sharding that no catalogue has

  // Tries causes that no catalogue has.
  Status try_sharding() {
    const auto try_these = [&](const std::vector<ShardingChange>& these) -> Status {
      std::vector<Hypothesis> candidates;
      for (const ShardingChange& change : these) {
        if (auto h = hypothesis({part_of(change)})) candidates.push_back(std::move(*h));
      }
      return try_all(candidates);
    };
    if (asked_.optimizer.clip != OptimizerSpec::Clip::kNone)
      TWINRUN_RETURN_IF_ERROR(try_these({shown_unclipped(e_)}));
    if (asked_.sharding.cores < 2 || !result_.explanations.empty()) return Ok{};
    TWINRUN_RETURN_IF_ERROR(try_these(groups_like(e_, asked_, tensors_, subject_)));
    const bool losses_outside = std::ranges::any_of(fits_[held_].found, [&](const Distance& d) {
      return outside(d) && is_loss(tensors_[place_of(d.value)]);
    });
    if (result_.explanations.empty() && losses_outside) {
      TWINRUN_ASSIGN(const std::vector<ShardingChange> fed,
                     deals_by_losses(e_, asked_, states_, tensors_, subject_, options_.threads));
      TWINRUN_RETURN_IF_ERROR(try_these(fed));
    }
    return Ok{};
  }

  // All single changes: causes of sharding, and formulas. Where loss and gradients, which the
  // update takes, are as expected, only formulas of the update.
  Parts changes(bool update_alone) const {
    Parts parts;
    const std::vector<std::string> present = present_causes(e_, asked_.sharding);
    for (const std::string& cause : possible_causes(e_)) {
      const bool has = std::ranges::find(present, cause) != present.end();
      parts.push_back({cause, !has, {}});
    }
    if (!options_.formulas) return parts;
    for (FormulaChange& change : formula_changes(e_)) {
      if (!update_alone || change.update_only) add(parts, std::move(change));
    }
    for (Explanation::Part& part : standing_parts()) {
      if (!update_alone || part.formula->update_only) parts.push_back(std::move(part));
    }
    return parts;
  }

  // Numbers that no list has, each solved for from the listed value that brings the subject
  // nearest. Only plain numbers count as somebody's setting; an engine's wrong constant may be any
  // number.
  Result<Parts> solved(bool update_alone, const std::vector<Hypothesis>& singles) {
    Parts out;
    TWINRUN_ASSIGN(const double of_asked, nearness_of_asked());
    for (NumberKey& key : number_keys(e_)) {
      if (update_alone && !key.update_only) continue;
      double nearest = of_asked;
      for (const Hypothesis& h : singles) {
        const auto& formula = h.parts.front().formula;
        if (!formula || formula->values.size() != 1 || formula->values.front().first != key.key)
          continue;
        const double value = number_in(formula->values.front().second);
        if (h.nearness >= nearest || !key.takes(value)) continue;
        nearest = h.nearness;
        key.start = value;
      }
      if (!key.takes(key.start)) continue;
      std::optional<double> before;
      for (const bool powers_anew : {true, false}) {
        if (!powers_anew && !key.key.starts_with("optimizer.beta")) break;
        TWINRUN_ASSIGN(const std::optional<double> value, solve(key, powers_anew));
        const std::optional<double> plain = value ? plain_number(*value) : std::nullopt;
        if (plain && plain != before) add(out, fitted_number(e_, key.key, *plain));
        before = plain;
      }
    }
    return out;
  }

  // A hypothesis for each part by itself. With another decay there are two: a script that continues
  // from the given powers of the decay has other powers than one that counts updates.
  std::vector<Hypothesis> hypotheses(const Parts& parts) const {
    std::vector<Hypothesis> out;
    for (const Explanation::Part& part : parts) {
      std::optional<Hypothesis> h = hypothesis({part});
      if (!h) continue;
      const bool own_powers = std::ranges::any_of(
          h->map.powers, [](const auto& power) { return power.first != power.second; });
      out.push_back(std::move(*h));
      if (!own_powers) continue;
      if (auto given = hypothesis({part}, false)) out.push_back(std::move(*given));
    }
    return out;
  }

  Status explain(bool update_alone) {
    if (asked_.recipe == nullptr) return Ok{};
    const Parts parts = changes(update_alone);
    std::vector<Hypothesis> singles = hypotheses(parts);
    TWINRUN_RETURN_IF_ERROR(try_all(singles));
    if (result_.explanations.empty()) TWINRUN_RETURN_IF_ERROR(try_sharding());
    if (result_.explanations.empty() && options_.formulas) {
      TWINRUN_ASSIGN(const Parts numbers, fitted(update_alone));
      std::vector<Hypothesis> more = hypotheses(numbers);
      TWINRUN_RETURN_IF_ERROR(try_all(more));
    }
    if (result_.explanations.empty() && options_.formulas) {
      TWINRUN_ASSIGN(const Parts numbers, solved(update_alone, singles));
      std::vector<Hypothesis> more = hypotheses(numbers);
      TWINRUN_RETURN_IF_ERROR(try_all(more));
    }
    if (result_.explanations.empty() && options_.pairs) {
      std::vector<Hypothesis> pairs = pairs_of(parts, singles);
      TWINRUN_RETURN_IF_ERROR(try_all(pairs));
    }
    keep_preferred(result_.explanations);
    result_.twins = twins_of(e_, result_.explanations);
    return Ok{};
  }

  std::vector<Hypothesis> pairs_of(const Parts& parts,
                                   const std::vector<Hypothesis>& singles) const {
    std::vector<Hypothesis> out;
    const auto both = [&](const Explanation::Part& a, const Explanation::Part& b) {
      if (exclude_each_other(a, b)) return;
      if (auto h = hypothesis({a, b})) out.push_back(std::move(*h));
    };
    // All pairs of two causes of sharding, because each may hide the other.
    for (size_t a = 0; a < parts.size(); ++a) {
      for (size_t b = a + 1; b < parts.size(); ++b) {
        if (!parts[a].formula && !parts[b].formula) both(parts[a], parts[b]);
      }
    }
    std::vector<const Hypothesis*> best;
    for (const Hypothesis& h : singles) best.push_back(&h);
    std::ranges::stable_sort(best, {}, &Hypothesis::nearness);
    const double each = (in_binary32() ? 1 : kFirstLook) * search_cost(asked_);
    const auto affordable = static_cast<size_t>(kSearchBudget / each);
    for (size_t i = 0; i < std::min(best.size(), kMaxOfPairs); ++i) {
      for (size_t k = i + 1; k < best.size() && out.size() < affordable; ++k) {
        const Explanation::Part &a = best[i]->parts[0], &b = best[k]->parts[0];
        if (a.formula || b.formula) both(a, b);
      }
    }
    return out;
  }

  std::optional<Hypothesis> nearest_;
  std::map<size_t, std::vector<double>> spreads_;  // by step, for spreads_at()
};

}  // namespace twinrun
