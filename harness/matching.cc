#include "harness/matching.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "harness/assignment_fit.h"
#include "harness/matching_fit.h"
#include "program/analysis/liveness.h"

namespace twinrun {
namespace {

// Of what a state holds; more is no rounding of binary32 (an update's constants may be as far off).
constexpr double kRoundingToOneSide = 0x1p-16;

constexpr size_t kMostTried = 12;

// An explanation brings the subject nearer by as much.
constexpr double kExplains = 1.5;

// Two changes at once: each of the few that bring the subject nearest by themselves, with every other one. What trying them may
// cost, in floating-point operations of all steps (half a minute of one core at most).
constexpr size_t kMostOfPairs = 6;

constexpr double kPairBudget = 5e11;

constexpr double kTensorOverhead = 2e5;  // of a step beside its products, per op, in the same unit

// Of causes that no catalogue has, as many are tried with every other cause.
constexpr size_t kDealsInPairs = 3, kGroupsInPairs = 2;

// A program that the subject may have run instead.
struct Hypothesis {
  std::vector<Explanation::Part> parts;
  Program program;
  std::shared_ptr<const Experiment> experiment = nullptr;  // whose feed the program reads
  // Where its decays are others: the powers of them that the states hold, taken anew, and not compared: a script may well keep
  // the protocol's counters as they are.
  std::optional<std::vector<MatchState>> states = std::nullopt;
  std::vector<Observed> members = {};
  double score = 0;     // the subject's largest ratio in an envelope of two
  int64_t far = 0;      // values that two members rule out
  double nearness = 0;  // the sum of the ratios' logarithms: how much is wrong in all
};

double logarithms(const std::vector<Distance>& found) {
  double sum = 0;
  for (const Distance& d : found) sum += std::log10(1 + std::min(d.ratio, 1e12));
  return sum;
}

bool is_single(const std::vector<Explanation::Part>& parts) { return parts.size() == 1; }

class Matcher : public SubjectFit {
 public:
  Matcher(const Experiment& e, const Program& asked, const std::vector<MatchState>& states,
          const MatchOptions& options, const Capabilities& declared)
      : SubjectFit(e, asked, states, options, declared) {}
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
      TWINRUN_ASSIGN(const std::vector<Explanation::Part> again, fitted(true));
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
    TWINRUN_RETURN_IF_ERROR(describe_outside(h->program, found, h->members, h->experiment.get()));
    return std::move(result_.outside);
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
                                                 nearest_->experiment.get()));
        return result_;
      }
    }
    TWINRUN_RETURN_IF_ERROR(describe_outside(asked_, found, members));
    return result_;
  }

 private:
  using SubjectFit::add_members;
  Status add_members(Hypothesis& h, int wanted) {
    const size_t had = h.members.size();
    TWINRUN_RETURN_IF_ERROR(add_members(fits_[held_].of, h.program, h.states ? *h.states : states_,
                                        wanted, h.members, h.experiment.get()));
    for (size_t m = had; losses_together(h.parts) && m < h.members.size(); ++m)
      h.members[m] = with_mean_losses(h.members[m], tensors_);
    for (size_t m = had; h.states && m < h.members.size(); ++m) {
      for (size_t v = 0; v < subject_.values.size(); ++v) {
        const Compared& c = tensors_[place_of(v)];
        if (c.is_state && asked_.state[c.index].role == StateRole::kCounter)
          h.members[m].values[v] = subject_.values[v];
      }
    }
    return Ok{};
  }

  // nullopt: there is no such program, or it has another state than the one asked for.
  std::optional<Hypothesis> hypothesis(std::vector<Explanation::Part> parts) const {
    const Result<ChangedProgram> changed = changed_by(e_, asked_.sharding, parts);
    if (!changed) return std::nullopt;
    const bool formula = std::ranges::any_of(
        parts, [](const Explanation::Part& part) { return part.formula.has_value(); });
    if (changed->experiment == nullptr && changed->sharding == asked_.sharding &&
        !losses_together(parts))
      return std::nullopt;
    try {
      Hypothesis h{std::move(parts), asked_, changed->experiment};
      if (!formula) {
        h.program = reshard(asked_, changed->sharding);
      } else {
        h.program = step_of(*changed->experiment, changed->sharding);
        if (!same_layout(h.program)) return std::nullopt;
        h.states = with_own_powers(h.program.optimizer);
      }
      return h;
    } catch (const GraphError&) {
      return std::nullopt;
    }
  }

  std::vector<Distance> distances_from(const Hypothesis& h) const {
    return distances(losses_together(h.parts) ? with_mean_losses(subject_, tensors_) : subject_,
                     envelope(h.members));
  }

  // The states, with the powers of other decays at the same number of updates; nullopt: the decays are the same.
  std::optional<std::vector<MatchState>> with_own_powers(const OptimizerSpec& own) const {
    const OptimizerSpec& due = asked_.optimizer;
    if (own.beta1 == due.beta1 && own.beta2 == due.beta2) return std::nullopt;
    std::vector<MatchState> out = states_;
    bool any = false;
    for (size_t i = 0; i < asked_.state.size(); ++i) {
      const bool first = asked_.state[i].name.ends_with("beta1_power");
      if (!first && !asked_.state[i].name.ends_with("beta2_power")) continue;
      const double was = first ? due.beta1 : due.beta2, is = first ? own.beta1 : own.beta2;
      for (MatchState& state : out) {
        for (ReplicaState& replica : state.states) {
          const double power = as_doubles(replica.vars[i])[0];
          if (!(was > 0 && was < 1 && power > 0 && power < 1)) return std::nullopt;
          const auto updates = static_cast<int64_t>(std::lround(std::log(power) / std::log(was)));
          float own_power = 1;
          for (int64_t k = 0; k < std::min<int64_t>(updates, 100000); ++k)
            own_power *= static_cast<float>(is);
          replica.vars[i] = Tensor::scalar(own_power);
          any = true;
        }
      }
    }
    return any ? std::optional(std::move(out)) : std::nullopt;
  }

  bool same_layout(const Program& other) const {
    return std::ranges::equal(other.state, asked_.state,
                              [](const StateVar& a, const StateVar& b) {
                                return a.name == b.name && a.type == b.type;
                              }) &&
           std::ranges::equal(other.outputs, asked_.outputs,
                              [](const Output& a, const Output& b) { return a.name == b.name; }) &&
           std::ranges::equal(other.inputs, asked_.inputs,
                              [](const Input& a, const Input& b) { return a.name == b.name; });
  }

  // Two members each: how far is the subject from what they do?
  Status look_at(std::vector<Hypothesis>& candidates) {
    for (Hypothesis& h : candidates) {
      TWINRUN_RETURN_IF_ERROR(add_members(h, kFirstLook));
      const std::vector<Distance> found = distances_from(h);
      h.score = largest(found);
      h.nearness = logarithms(found);
      h.far =
          std::ranges::count_if(found, [](const Distance& d) { return d.ratio > kWorthTrying; });
      if (h.far > 0) h.members.clear();
    }
    return Ok{};
  }

  // Those among `candidates` whose own envelope holds the subject.
  Status try_all(std::vector<Hypothesis>& candidates) {
    TWINRUN_RETURN_IF_ERROR(look_at(candidates));
    std::vector<Hypothesis> worth;
    for (const Hypothesis& h : candidates) {
      if (h.far == 0) {
        worth.push_back(h);
      } else if (may_stand_beside(h) && (!nearest_ || h.far < nearest_->far)) {
        nearest_ = h;
      }
    }
    std::ranges::stable_sort(worth, {}, &Hypothesis::score);
    if (worth.size() > kMostTried) worth.resize(kMostTried);
    for (Hypothesis& h : worth) {
      TWINRUN_RETURN_IF_ERROR(add_members(h, options_.many));
      const std::vector<Distance> found = distances_from(h);
      // A program that means the same rounds otherwise: it holds no worse what only just is outside.
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
    return is_single(h.parts) && !losses_together(h.parts);
  }

  // ---- causes of sharding that no catalogue has

  bool any_outside(const std::vector<Distance>& found, auto&& which) const {
    return std::ranges::any_of(
        found, [&](const Distance& d) { return outside(d) && which(tensors_[place_of(d.value)]); });
  }

  // How often each sample counts, by the gradients.
  Result<std::optional<ShardingChange>> counted() {
    TWINRUN_ASSIGN(const Observed due, predict(asked_, states_));
    return deal_by_gradients(e_, asked_, states_, tensors_, subject_, due, options_.threads);
  }

  // What no catalogue has. Of what explains nothing by itself, the likeliest are left for `parts`.
  Status try_sharding(std::vector<Explanation::Part>& parts) {
    if (asked_.sharding.cores < 2) return Ok{};
    const std::vector<Distance> found = fits_[held_].found;
    const auto try_these = [&](const std::vector<ShardingChange>& these, size_t keep) -> Status {
      std::vector<Hypothesis> candidates;
      for (const ShardingChange& change : these) {
        if (auto h = hypothesis({part_of(change)})) candidates.push_back(std::move(*h));
      }
      TWINRUN_RETURN_IF_ERROR(try_all(candidates));
      std::ranges::stable_sort(candidates, {}, &Hypothesis::nearness);
      for (size_t i = 0; i < std::min(keep, candidates.size()); ++i)
        parts.push_back(candidates[i].parts.front());
      return Ok{};
    };
    TWINRUN_RETURN_IF_ERROR(try_these(groups_like(e_, asked_, tensors_, subject_), kGroupsInPairs));
    if (result_.explanations.empty() && any_outside(found, is_loss)) {
      TWINRUN_ASSIGN(const std::vector<ShardingChange> fed,
                     deals_by_losses(e_, asked_, states_, tensors_, subject_, options_.threads));
      TWINRUN_RETURN_IF_ERROR(try_these(fed, kDealsInPairs));
    }
    if (result_.explanations.empty() &&
        any_outside(found, [](const Compared& c) { return c.tensor.ends_with(".grad"); })) {
      TWINRUN_ASSIGN(const auto change, counted());
      if (change) TWINRUN_RETURN_IF_ERROR(try_these({*change}, 0));
    }
    return Ok{};
  }

  // Every change by itself: causes of sharding, and formulas; of the latter those of the update alone where all that the update
  // takes, loss and gradients, is as it should be.
  std::vector<Explanation::Part> changes(bool update_alone) const {
    std::vector<Explanation::Part> parts;
    const std::vector<std::string> present = present_causes(e_, asked_.sharding);
    for (const std::string& cause : possible_causes(e_)) {
      const bool has = std::ranges::find(present, cause) != present.end();
      parts.push_back({cause, !has});
    }
    if (!options_.formulas) return parts;
    for (FormulaChange& change : formula_changes(e_)) {
      if (update_alone && !change.update_only) continue;
      std::string setting = change.setting;
      parts.push_back({std::move(setting), true, std::move(change)});
    }
    return parts;
  }

  // Along what is due, over all tensors of a kind on replica 0 of one state.
  double along(const Observed& due, size_t state, bool of_parameters) const {
    double product = 0, squares = 0;
    for (size_t t = 0; t < tensors_.size(); ++t) {
      const Compared& c = tensors_[t];
      const bool gradient = c.tensor.ends_with(".grad");
      const bool parameter = c.is_state && asked_.state[c.index].role == StateRole::kParameter;
      if (of_parameters ? !parameter : !gradient) continue;
      const size_t v = (state * tensors_.size() + t) * subject_.replicas;
      const std::vector<float>&x = *subject_.values[v].data, &p = *due.values[v].data;
      for (size_t i = 0; i < x.size(); ++i) {
        product += static_cast<double>(x[i]) * static_cast<double>(p[i]);
        squares += static_cast<double>(p[i]) * static_cast<double>(p[i]);
      }
    }
    return squares > 0 ? product / squares : 0;
  }

  // Numbers that no list has, as the subject shows them.
  Result<std::vector<Explanation::Part>> fitted(bool update_alone) {
    std::vector<Explanation::Part> out;
    const auto add = [&](FormulaChange change) {
      std::string setting = change.setting;
      out.push_back({std::move(setting), true, std::move(change)});
    };
    if (e_.imported) return out;
    if (!update_alone) {
      TWINRUN_ASSIGN(const Observed due, predict(asked_, states_));
      const double factor = along(due, 0, false);
      if (!(factor > 0 && std::isfinite(factor)) || std::fabs(factor - 1) < 1e-6) return out;
      add(fitted_number(e_, "loss.scale", factor));
      add(fitted_number(e_, "optimizer.gradient_scale", factor));
      return out;
    }
    Experiment unit = e_;
    for (const MatchState& state : states_) unit.rates[state.step] = 1;
    TWINRUN_ASSIGN(const Observed due, predict(asked_, states_, &unit));
    std::map<int64_t, double> rates;
    double least = HUGE_VAL, most = 0;
    for (size_t s = 0; s < states_.size(); ++s) {
      const double rate = along(due, s, true);
      if (!(rate >= 0 && std::isfinite(rate))) return out;
      rates[states_[s].step] = rate;
      least = std::min(least, rate);
      most = std::max(most, rate);
    }
    const OptimizerConfig& o = e_.scenario.optimizer;
    const bool constant = o.schedule == "constant" && o.warmup_steps == 0;
    if (constant && most > 0 && most - least <= 1e-5 * most) {
      add(fitted_number(e_, "optimizer.lr", most));
    } else {
      add(fitted_rates(e_, rates));
    }
    return out;
  }

  Status explain(bool update_alone) {
    if (asked_.recipe == nullptr) return Ok{};
    std::vector<Explanation::Part> parts = changes(update_alone);
    std::vector<Hypothesis> singles;
    for (const Explanation::Part& part : parts) {
      std::optional<Hypothesis> h = hypothesis({part});
      if (!h) continue;
      // Who goes on from the powers as they are given has other ones than who counts updates.
      if (h->states) {
        singles.push_back(*h);
        singles.back().states.reset();
      }
      singles.push_back(std::move(*h));
    }
    TWINRUN_RETURN_IF_ERROR(try_all(singles));
    if (result_.explanations.empty()) TWINRUN_RETURN_IF_ERROR(try_sharding(parts));
    if (result_.explanations.empty() && options_.formulas) {
      TWINRUN_ASSIGN(const std::vector<Explanation::Part> numbers, fitted(update_alone));
      std::vector<Hypothesis> more;
      for (const Explanation::Part& part : numbers) {
        if (auto h = hypothesis({part})) more.push_back(std::move(*h));
      }
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

  std::vector<Hypothesis> pairs_of(const std::vector<Explanation::Part>& parts,
                                   const std::vector<Hypothesis>& singles) const {
    std::vector<Hypothesis> out;
    const auto add = [&](const Explanation::Part& a, const Explanation::Part& b) {
      if (exclude_each_other(a, b)) return;
      if (auto h = hypothesis({a, b})) out.push_back(std::move(*h));
    };
    // Of two causes of sharding, each of which may hide the other, all.
    for (size_t a = 0; a < parts.size(); ++a) {
      for (size_t b = a + 1; b < parts.size(); ++b) {
        if (!parts[a].formula && !parts[b].formula) add(parts[a], parts[b]);
      }
    }
    std::vector<const Hypothesis*> best;
    for (const Hypothesis& h : singles) best.push_back(&h);
    std::ranges::stable_sort(best, {}, &Hypothesis::nearness);
    const double each = kFirstLook * static_cast<double>(states_.size() * asked_.sharding.cores) *
                        (step_flops(asked_) + kTensorOverhead * asked_.graph.size());
    const auto affordable = static_cast<size_t>(kPairBudget / each);
    for (size_t i = 0; i < std::min(best.size(), kMostOfPairs); ++i) {
      for (size_t k = i + 1; k < best.size() && out.size() < affordable; ++k) {
        const Explanation::Part &a = best[i]->parts[0], &b = best[k]->parts[0];
        if (a.formula || b.formula) add(a, b);
      }
    }
    return out;
  }

  // ---- what is outside, and what it looks like

  // Of `program`, whose honest engines are `members`.
  Status describe_outside(const Program& program, const std::vector<Distance>& found,
                          const std::vector<Observed>& members,
                          const Experiment* experiment = nullptr) {
    TWINRUN_ASSIGN(exact_, predict(program, states_, experiment));
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
      TWINRUN_ASSIGN(parts, predict(reshard(program, s), states_, experiment));
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
  std::optional<Hypothesis> nearest_;
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

Result<MatchResult> match_subject(const Experiment& e, const Program& asked, Backend& subject,
                                  const std::vector<MatchState>& states,
                                  const MatchOptions& options) {
  if (states.empty()) return Error{"no state to match from", "matching", ""};
  return Matcher(e, asked, states, options, subject.capabilities()).run(subject);
}

}  // namespace twinrun
