#include "harness/matching.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "harness/program_search.h"
#include "program/analysis/liveness.h"

namespace twinrun {
namespace {

// Of what a state holds; more is no rounding of binary32 (an update's constants may be as far off).
constexpr double kRoundingToOneSide = 0x1p-16;

class Matcher : public ProgramSearch {
 public:
  Matcher(const Experiment& e, const Program& asked, const std::vector<MatchState>& states,
          const MatchOptions& options, const Capabilities& declared)
      : ProgramSearch(e, asked, states, options, declared) {}
  // What is outside with these changes made.
  Result<std::vector<TensorMismatch>> outside_of(Backend& subject,
                                                 const std::vector<Explanation::Part>& parts) {
    TWINRUN_RETURN_IF_ERROR(observe_subject(subject));
    TWINRUN_RETURN_IF_ERROR(find_class());
    // Rates of single steps are those of these steps.
    std::vector<Explanation::Part> own = parts;
    for (Explanation::Part& part : own) {
      if (part.sharding && !part.sharding->deals.empty()) {
        TWINRUN_ASSIGN(const auto again, counted());
        if (again) part = part_of(*again);
      }
      if (!part.formula || part.formula->rates.empty()) continue;
      TWINRUN_ASSIGN(const Parts again, fitted(true));
      if (!again.empty()) part = again.front();
    }
    std::optional<Hypothesis> h = hypothesis(own);
    if (!h) return Error{"there is no program with these changes", "matching", ""};
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
      return Error{"there is no program with these changes", "matching", ""};
    std::vector<Observed> members;
    TWINRUN_RETURN_IF_ERROR(add_deciders(of, h ? h->program : asked_, members,
                                         h ? h->experiment.get() : nullptr, h ? &h->map : nullptr));
    std::set<int64_t> stand;
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

  Result<MatchResult> run(Backend& subject) {
    TWINRUN_RETURN_IF_ERROR(observe_subject(subject));
    result_.false_alarm = options_.false_alarm;
    result_.states = static_cast<int64_t>(states_.size());

    TWINRUN_RETURN_IF_ERROR(find_class());
    if (untestable_) {
      result_.outcome = MatchResult::Outcome::kUntestable;
      result_.why = "honest engines end this step in NaN or Inf themselves";
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
        result_.outcome = MatchResult::Outcome::kUnrepeatable;
        TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
        return result_;
      }
    }
    if (!options_.explain) {
      result_.outcome = MatchResult::Outcome::kUnexplained;
      TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
      return result_;
    }
    const bool update_alone = std::ranges::none_of(found, [&](const Distance& d) {
      return outside(d) && !tensors_[place_of(d.value)].is_state;
    });
    TWINRUN_RETURN_IF_ERROR(explain(update_alone));
    if (!result_.explanations.empty()) {
      result_.outcome = MatchResult::Outcome::kExplained;
      TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
      return result_;
    }
    result_.outcome = MatchResult::Outcome::kUnexplained;
    TWINRUN_RETURN_IF_ERROR(undeclared_precision());
    if (!result_.undeclared.empty()) {
      TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
      return result_;
    }
    if (nearest_) {
      TWINRUN_RETURN_IF_ERROR(add_members(*nearest_, options_.many));
      const std::vector<Distance> left = distances_from(*nearest_);
      if (2 * count_outside(left) <= count_outside(found)) {
        result_.beside = Explanation{nearest_->parts, largest(left)};
        TWINRUN_RETURN_IF_ERROR(describe_outside(nearest_->program, left, nearest_->members,
                                                 nearest_->experiment.get(), &nearest_->map));
        return result_;
      }
      if (4 * tensors_outside(left) <= 3 * tensors_outside(found))
        result_.likeness = {
            {nearest_->parts, largest(left)}, tensors_outside(left), tensors_outside(found)};
    }
    TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
    return result_;
  }

 private:
  // ---- what is outside, and what it looks like

  // Of `program`, whose honest engines are `members`.
  Status describe_outside(const Program& program, const std::vector<Distance>& found,
                          const std::vector<Observed>& members,
                          const Experiment* experiment = nullptr, const StateMap* map = nullptr) {
    TWINRUN_ASSIGN(exact_, predict(program, states_, experiment, map));
    reach_.clear();
    result_.outside.clear();
    const Envelope honest = envelope(members);
    for (size_t v = 0; v < exact_.values.size(); ++v) {
      double reach = 0x1p-24 * exact_.values[v].size;
      for (const Observed& m : members)
        reach = std::max(reach, gap2(*m.values[v].data, *exact_.values[v].data));
      reach_.push_back(reach);
    }
    std::optional<Observed> parts;  // each core's gradient before the all-reduce
    if (asked_.sharding.cores > 1 && asked_.recipe != nullptr &&
        program.sharding.reduce_gradients) {
      Sharding s = program.sharding;
      s.reduce_gradients = false;
      TWINRUN_ASSIGN(parts, predict(reshard(program, s), states_, experiment, map));
    }
    // What one step shows by itself is told of that step; a look at all of them together, only where none does.
    const size_t stride = tensors_.size() * subject_.replicas;
    std::vector<bool> alone(stride);
    for (const Distance& d : found) {
      if (outside(d) && !of_all_steps(d.look)) alone[d.value % stride] = true;
    }
    std::vector<Distance> told;
    for (const Distance& d : found) {
      if (outside(d) && !(of_all_steps(d.look) && alone[d.value % stride])) told.push_back(d);
    }
    for (size_t i = 0; i < told.size(); ++i) {
      Distance d = told[i];  // of the looks at one value, the one that says most
      for (; i + 1 < told.size() && told[i + 1].value == d.value; ++i) {
        if (told[i + 1].ratio > d.ratio) d = told[i + 1];
      }
      const Compared& c = tensors_[place_of(d.value)];
      TensorMismatch m;
      m.tensor = c.tensor;
      m.is_state = c.is_state;
      m.replica = static_cast<int>(d.value % subject_.replicas);
      m.step = states_[d.value / subject_.replicas / tensors_.size()].step;
      m.distance = std::fabs(d.distance);
      m.spread = d.spread;
      m.ratio = d.ratio;
      m.all_steps = of_all_steps(d.look);
      const double size = norm2(*honest.values[d.value].mean);
      m.relative = d.look != Look::kDistance ? m.distance : size > 0 ? d.distance / size : 0;
      m.pattern = pattern(d.value, c, parts ? &*parts : nullptr);
      if (m.pattern.empty() && (d.look == Look::kSize || d.look == Look::kSizes))
        m.pattern = fmt::format("{:.8g} times what was due", 1 + d.distance);
      if (m.pattern.empty() && d.look != Look::kDistance) {
        m.pattern = fmt::format("{}values that lie {:.2g} of their size {} zero",
                                m.distance < kRoundingToOneSide ? "rounding to one side: " : "",
                                m.distance, d.distance < 0 ? "nearer to" : "farther from");
      }
      result_.outside.push_back(std::move(m));
    }
    // First what was computed first, of the earliest step: the others may follow from it.
    std::map<std::string, ValueId> order;
    for (const Compared& c : tensors_) order[c.tensor] = c.id;
    std::ranges::stable_sort(
        result_.outside, [&](const TensorMismatch& a, const TensorMismatch& b) {
          return std::pair(a.step, order[a.tensor]) < std::pair(b.step, order[b.tensor]);
        });
    return Ok{};
  }

  std::string pattern(size_t value, const Compared& c, const Observed* parts) const {
    const std::vector<float>&t = *subject_.values[value].data, &p = *exact_.values[value].data;
    if (!std::ranges::all_of(t, [](float x) { return std::isfinite(x); })) return "NaN or Inf";
    if (norm2(t) == 0) return c.is_state ? "unchanged: an update of zero" : "zero";
    double product = 0;
    for (size_t i = 0; i < t.size(); ++i)
      product += static_cast<double>(t[i]) * static_cast<double>(p[i]);
    const double size = norm2(p);
    const double factor = size > 0 ? product / (size * size) : 0;
    const auto near = [&](auto&& due, double grown) {
      double sum = 0;
      for (size_t i = 0; i < t.size(); ++i) {
        const double d = static_cast<double>(t[i]) - due(i);
        sum += d * d;
      }
      return std::sqrt(sum) <= 3 * reach_[value] * std::max(1.0, grown);
    };
    // A single number is a multiple of any other.
    if (t.size() > 1 && std::fabs(factor - 1) > 1e-3 &&
        near([&](size_t i) { return factor * static_cast<double>(p[i]); }, std::fabs(factor)))
      return factor < -0.999 && factor > -1.001 ? "its sign turned"
                                                : fmt::format("{:.6g} times what was due", factor);
    if (parts == nullptr || c.is_state || t.size() < 2) return "";
    const size_t first = value - value % subject_.replicas;
    for (size_t core = 0; core < subject_.replicas; ++core) {
      const std::vector<float>& own = *parts->values[first + core].data;
      if (near([&](size_t i) { return static_cast<double>(p[i]) - static_cast<double>(own[i]); },
               1))
        return fmt::format("without core {}'s part", core);
      if (near([&](size_t i) { return static_cast<double>(p[i]) + static_cast<double>(own[i]); },
               1))
        return fmt::format("core {}'s part twice", core);
    }
    return "";
  }

  Observed exact_;
  std::vector<double> reach_;  // per value: how far honest engines are from binary64
};

}  // namespace

Result<std::vector<TensorMismatch>> outside_of(const Experiment& e, const Program& asked,
                                               Backend& subject,
                                               const std::vector<MatchState>& states,
                                               const std::vector<Explanation::Part>& parts,
                                               const MatchOptions& options) {
  if (states.empty()) return Error{"no state to match from", "matching", ""};
  return Matcher(e, asked, states, options, subject.capabilities()).outside_of(subject, parts);
}

Result<std::set<int64_t>> steps_that_stand(const Experiment& e, const Program& asked,
                                           Backend& subject, const std::vector<MatchState>& states,
                                           const std::vector<Explanation::Part>& parts,
                                           const std::vector<TensorMismatch>& outside,
                                           const PrecisionClass& of, const MatchOptions& options) {
  return Matcher(e, asked, states, options, subject.capabilities())
      .steps_that_stand(subject, parts, outside, of);
}

Result<MatchResult> match_subject(const Experiment& e, const Program& asked, Backend& subject,
                                  const std::vector<MatchState>& states,
                                  const MatchOptions& options) {
  if (states.empty()) return Error{"no state to match from", "matching", ""};
  return Matcher(e, asked, states, options, subject.capabilities()).run(subject);
}

}  // namespace twinrun
