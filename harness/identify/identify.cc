// Identifies the program: finds the subject's precision class, searches for the program that it
// executed, and describes what is outside.
#include "harness/identify/identify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "harness/identify/outside.h"
#include "harness/identify/program_search.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

class Identifier : public ProgramSearch {
 public:
  Identifier(const Experiment& e, const Program& asked, const std::vector<ProbedState>& states,
             const IdentifyOptions& options, const Capabilities& declared)
      : ProgramSearch(e, asked, states, options, declared) {}
  // The tensors that are outside with these changes made.
  Result<std::vector<TensorMismatch>> outside_of(Backend& subject,
                                                 const std::vector<Explanation::Part>& parts,
                                                 const PrecisionClass& of) {
    TWINRUN_RETURN_IF_ERROR(observe_subject(subject));
    // Rates that are taken from the tensors of these steps need the members of the requested
    // program.
    const bool read = has_free_rates(parts);
    if (read) TWINRUN_RETURN_IF_ERROR(find_class());
    if (!read) {
      Fit fit;
      fit.of = of;
      fits_.push_back(std::move(fit));
    }
    // Rates of single steps are taken from these steps anew.
    std::vector<Explanation::Part> own = parts;
    for (Explanation::Part& part : own) {
      if (!part.formula || part.formula->rates.empty()) continue;
      TWINRUN_ASSIGN(const Parts again, fitted(true));
      if (!again.empty()) part = again.front();
    }
    std::optional<Hypothesis> h = hypothesis(own);
    if (!h)
      return Error{"no program with these changes can be built and compared with the requested one",
                   "identification", ""};
    TWINRUN_RETURN_IF_ERROR(add_members(*h, options_.few));
    std::vector<Distance> found = distances_from(*h);
    result_.threshold = threshold(h->members.size(), found.size());
    if (std::ranges::any_of(found, beyond)) {
      TWINRUN_RETURN_IF_ERROR(add_members(*h, options_.many));
      found = distances_from(*h);
      result_.threshold = threshold(h->members.size(), found.size());
    }
    if (count_outside(found) == 0) return std::vector<TensorMismatch>();
    TWINRUN_RETURN_IF_ERROR(
        describe_outside(h->program, found, h->members, h->experiment.get(), &h->map));
    return std::move(result_.outside);
  }

  Result<std::set<int64_t>> steps_that_stand(Backend& subject,
                                             const std::vector<Explanation::Part>& parts,
                                             const std::vector<TensorMismatch>& outside,
                                             const PrecisionClass& of) {
    TWINRUN_RETURN_IF_ERROR(observe_subject(subject));
    std::optional<Hypothesis> h;
    if (!parts.empty()) h = hypothesis(parts);
    if (!parts.empty() && !h)
      return Error{"no program with these changes can be built and compared with the requested one",
                   "identification", ""};
    std::vector<Observed> members;
    TWINRUN_RETURN_IF_ERROR(add_deciders(of, h ? h->program : asked_, members,
                                         h ? h->experiment.get() : nullptr, h ? &h->map : nullptr));
    std::set<int64_t> stand;
    // A decision makes a gradient jump. It only bends the slope of a loss, so that weights that are
    // moved further excuse too much there.
    constexpr double kLossStands = 4;
    for (const TensorMismatch& m : outside) {
      if (m.tensor == "loss" && !m.all_steps &&
          m.ratio > kLossStands * student_limit(members.size(), options_.false_alarm))
        stand.insert(m.step);
    }
    for (const Distance& d : distances(subject_, envelope_of(members, slack_))) {
      if (of_all_steps(d.look)) continue;
      const int64_t step = states_[d.value / subject_.replicas / tensors_.size()].step;
      const std::string& tensor = tensors_[place_of(d.value)].tensor;
      const bool accused = std::ranges::any_of(outside, [&](const TensorMismatch& m) {
        return m.step == step && m.tensor == tensor &&
               m.replica == static_cast<int>(d.value % subject_.replicas);
      });
      if (accused && beyond(d)) stand.insert(step);
    }
    return stand;
  }

  Result<Identification> run(Backend& subject) {
    TWINRUN_RETURN_IF_ERROR(observe_subject(subject));
    result_.false_alarm = options_.false_alarm;
    result_.states = static_cast<int64_t>(states_.size());

    TWINRUN_RETURN_IF_ERROR(find_class());
    if (untestable_) {
      result_.outcome = Identification::Outcome::kUntestable;
      result_.why = "conforming engines end this step in NaN or Inf themselves";
      return result_;
    }
    const Fit& held = fits_[held_];
    result_.computes_as = row_of(held.of.precision).word;
    result_.computes = held.of.does;
    result_.held = held.of;
    result_.comparisons = static_cast<int64_t>(held.found.size());
    result_.threshold = held.threshold;
    result_.ratio = largest(held.found);
    if (held.outside == 0) return result_;
    const std::vector<Distance>& found = held.found;
    const std::vector<Observed>& members = held.members;

    if (options_.explain && !declared_.deterministic) {
      TWINRUN_ASSIGN(const bool repeats, repeatable(subject, found, envelope(members)));
      if (!repeats) {
        result_.outcome = Identification::Outcome::kUnrepeatable;
        TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
        return result_;
      }
    }
    if (!options_.explain) {
      result_.outcome = Identification::Outcome::kUnexplained;
      TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
      return result_;
    }
    const bool update_alone = std::ranges::none_of(found, [&](const Distance& d) {
      return outside(d) && !tensors_[place_of(d.value)].is_state;
    });
    TWINRUN_RETURN_IF_ERROR(explain(update_alone));
    if (!result_.explanations.empty()) {
      result_.outcome = Identification::Outcome::kExplained;
      TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
      return result_;
    }
    result_.outcome = Identification::Outcome::kUnexplained;
    TWINRUN_RETURN_IF_ERROR(undeclared_precision());
    if (!result_.undeclared.empty()) {
      TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
      return result_;
    }
    TWINRUN_ASSIGN(std::optional<Hypothesis> beside, identified_by_updates());
    const bool halves = !beside;
    if (!beside) beside = nearest_;
    if (beside) {
      TWINRUN_RETURN_IF_ERROR(add_members(*beside, options_.many));
      const std::vector<Distance> left = distances_from(*beside);
      // Tensors that the other program lacks are not compared in either.
      std::vector<Distance> both = found;
      std::erase_if(both, [&](const Distance& d) {
        return !is_compared(beside->map, tensors_[place_of(d.value)]);
      });
      // Half of what is outside may lie just outside, and be inside with other members. A program
      // that is the explanation brings the subject nearer in all of it.
      constexpr double kNearer = 0.75;
      const bool nearer = logarithms(left) <= kNearer * logarithms(both);
      if (!halves || (nearer && 2 * count_outside(left) <= count_outside(both))) {
        result_.beside = Explanation{beside->parts, largest(left)};
        TWINRUN_RETURN_IF_ERROR(describe_outside(beside->program, left, beside->members,
                                                 beside->experiment.get(), &beside->map));
        return result_;
      }
      if (4 * tensors_outside(left) <= 3 * tensors_outside(both))
        result_.signature = {
            {beside->parts, largest(left)}, tensors_outside(left), tensors_outside(both)};
    }
    TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
    return result_;
  }

 private:
  // The change that the updates show in the gradients that the subject reported, right or wrong: at
  // every step they are not the scenario's updates, but those of exactly this change. The formula
  // of an update shows in its own input and output, whatever else is wrong.
  Result<std::optional<Hypothesis>> identified_by_updates() {
    std::optional<Hypothesis> none;
    const bool seen =
        std::ranges::none_of(states_, [](const ProbedState& s) { return s.outputs.empty(); });
    if (!seen || !options_.formulas || asked_.recipe == nullptr) return none;
    TWINRUN_ASSIGN(const double as_asked, updates_off(asked_, e_));
    if (as_asked <= 1) return none;
    std::vector<Explanation::Part> parts;
    for (Explanation::Part& part : changes(true)) {
      const bool update =
          part.formula || part.cause == "rate_times_cores" || part.cause == "rate_over_cores";
      if (update) parts.push_back(std::move(part));
    }
    // Of equal ones the first stays: a cause of sharding.
    double best = std::numeric_limits<double>::infinity();
    for (const Explanation::Part& part : parts) {
      std::optional<Hypothesis> h = hypothesis({part});
      if (!h || !h->map.is_same()) continue;
      TWINRUN_ASSIGN(const double off,
                     updates_off(h->program, h->experiment ? *h->experiment : e_));
      if (off > 1 || off >= best) continue;
      best = off;
      none = std::move(h);
    }
    return none;
  }
  Result<double> updates_off(const Program& program, const Experiment& experiment) {
    double most = 0;
    for (size_t s = 0; s < states_.size() && most <= 1; ++s) {
      TWINRUN_ASSIGN(const ProbedState again,
                     updated_as_reported(experiment, program, asked_, declared_, states_[s],
                                         options_.threads));
      TWINRUN_ASSIGN(const Observed updated, observe(e_, nullptr, asked_, tensors_, {again}));
      most = std::max(most, twinrun::updates_off(asked_, tensors_, subject_, s, updated, slack_));
    }
    return most;
  }

  // ---- description of what is outside

  // Describes what is outside of `program`, whose conforming engines are `members`.
  Status describe_outside(const Program& program, const std::vector<Distance>& found,
                          const std::vector<Observed>& members,
                          const Experiment* experiment = nullptr, const StateMap* map = nullptr) {
    TWINRUN_ASSIGN(const Observed exact, predict(program, states_, experiment, map));
    result_.outside.clear();
    const Envelope conforming = envelope(members);
    OutsideView view{asked_, tensors_, states_, subject_, members, conforming, exact};
    view.false_alarm = options_.false_alarm;
    std::optional<Observed> parts;  // each core's gradient before the all-reduce
    if (asked_.sharding.cores > 1 && asked_.recipe != nullptr &&
        program.sharding.reduce_gradients) {
      Sharding s = program.sharding;
      s.reduce_gradients = false;
      TWINRUN_ASSIGN(parts, predict(reshard(program, s), states_, experiment, map));
      view.parts = &*parts;
    }
    std::vector<Distance> out;
    for (const Distance& d : found) {
      if (outside(d)) out.push_back(d);
    }
    // The steps before, and the update alone, need a program with the requested program's state.
    const bool same_state = map == nullptr || map->is_same();
    if (same_state) TWINRUN_RETURN_IF_ERROR(look_back(program, out, experiment, view));
    result_.outside = describe(view, out);
    if (result_.outside.empty()) return Ok{};
    const int64_t step = result_.outside.front().step;
    const auto at = std::ranges::find(states_, step, &ProbedState::step);
    if (at == states_.end() || at->outputs.empty() || !same_state) return Ok{};
    TWINRUN_ASSIGN(const ProbedState again,
                   updated_as_reported(experiment != nullptr ? *experiment : e_, program, asked_,
                                       declared_, *at, options_.threads));
    TWINRUN_ASSIGN(const Observed updated, observe(e_, nullptr, asked_, tensors_, {again}));
    tell_updates(view, updated, step, result_.outside);
    return Ok{};
  }

  // Predicts the steps before those that are outside, where they were kept: a tensor may be that of
  // the step before.
  Status look_back(const Program& program, const std::vector<Distance>& out,
                   const Experiment* experiment, OutsideView& view) {
    constexpr size_t kMaxLooks = 3;
    const std::vector<ProbedState>& kept =
        options_.history != nullptr ? *options_.history : states_;
    for (const Distance& d : out) {
      const int64_t step = states_[d.value / subject_.replicas / tensors_.size()].step;
      const auto was = std::ranges::find(kept, step - 1, &ProbedState::step);
      if (was == kept.end() || view.before.contains(step) || view.before.size() == kMaxLooks)
        continue;
      TWINRUN_ASSIGN(view.before[step], predict(program, {*was}, experiment));
      if (was->after.empty()) continue;
      TWINRUN_ASSIGN(view.gave[step], observe(e_, nullptr, asked_, tensors_, {*was}));
    }
    return Ok{};
  }
};

}  // namespace

double search_cost(const Program& program) {
  constexpr double kOverhead = 2e5;  // per op
  return program.sharding.cores * (step_flops(program) + kOverhead * program.graph.size());
}

Result<std::vector<TensorMismatch>> outside_of(const Experiment& e, const Program& asked,
                                               Backend& subject,
                                               const std::vector<ProbedState>& states,
                                               const std::vector<Explanation::Part>& parts,
                                               const PrecisionClass& of,
                                               const IdentifyOptions& options) {
  if (states.empty()) return Error{"no state to identify the program from", "identification", ""};
  return Identifier(e, asked, states, options, subject.capabilities())
      .outside_of(subject, parts, of);
}

Result<std::set<int64_t>> steps_that_stand(const Experiment& e, const Program& asked,
                                           Backend& subject, const std::vector<ProbedState>& states,
                                           const std::vector<Explanation::Part>& parts,
                                           const std::vector<TensorMismatch>& outside,
                                           const PrecisionClass& of,
                                           const IdentifyOptions& options) {
  return Identifier(e, asked, states, options, subject.capabilities())
      .steps_that_stand(subject, parts, outside, of);
}

Result<Identification> identify_program(const Experiment& e, const Program& asked, Backend& subject,
                                        const std::vector<ProbedState>& states,
                                        const IdentifyOptions& options) {
  if (states.empty()) return Error{"no state to identify the program from", "identification", ""};
  return Identifier(e, asked, states, options, subject.capabilities()).run(subject);
}

}  // namespace twinrun
