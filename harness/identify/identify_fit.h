// Compares the subject with the conforming engines of each precision class that its
// declaration allows (harness/envelope/precision_class.h): which class it belongs to, and what lies
// outside of that class. For identify.cc; judge_steps.cc uses its limits, too.
#pragma once

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "harness/envelope/members.h"
#include "harness/envelope/precision_class.h"
#include "harness/envelope/script_engine.h"
#include "harness/identify/identify.h"
#include "harness/run/one_step.h"
#include "harness/run/run.h"
#include "program/base/distributions.h"

namespace twinrun {

// To be outside, a distance must not only exceed Student's quantile, but also be this many times
// the largest distance of any member of the ensemble (a conforming engine). This allows for
// decisions that depend on rounding (relu, max): the distances that they cause are not normally
// distributed, but the members differ in these decisions as well.
inline constexpr double kBeyondMembers = 2;
// The size of what is rounding alone (a gradient that cancels) differs tenfold between engines, and
// Adam squares it.
inline constexpr double kBeyondRounding = 100;
inline bool beyond(const Distance& d) {
  return d.of_largest > (d.known ? kBeyondMembers : kBeyondRounding);
}
// Student's quantile, for the distance of one more draw from the mean of n, in units of their
// spread. It holds for a single number (all its rounding errors in step); a tensor with many
// independent errors stays closer.
inline double student_limit(size_t members, double false_alarm) {
  return student_upper(static_cast<double>(members - 1), false_alarm / 2);
}
inline bool of_all_steps(Look look) { return look == Look::kSizes || look == Look::kStoreds; }
// Two members select the causes that are worth an envelope of their own: a cause is dropped where
// the subject is more than kWorthTrying times as far from both as these lie apart. (The Student's t
// of one degree of freedom exceeds kWorthTrying with probability 6e-4.)
inline constexpr int kFirstLook = 2;
inline constexpr double kWorthTrying = 1000;
// A class that contains the subject names its precision well where the subject's gradients are off
// by at most this, in units of what the members are off by. For the members themselves that is
// about one.
inline constexpr double kTypical = 1.5;
// Beyond this, the class is not the subject's own, though the subject may lie inside: classes whose
// operands occasionally round the other way are wide.
inline constexpr double kOwn = 2;

// The subject compared with one precision class.
struct Fit {
  PrecisionClass of;
  std::vector<Observed> members;
  std::vector<Distance> found;
  double threshold = 0;
  int64_t outside = 0;           // distances that are outside
  std::vector<bool> values_out;  // by value: whether its norm is outside
};

class SubjectFit {
 protected:
  SubjectFit(const Experiment& e, const Program& asked, const std::vector<ProbedState>& states,
             const IdentifyOptions& options, const Capabilities& declared)
      : e_(e), asked_(asked), states_(states), options_(options), declared_(declared) {
    tensors_ = compared_tensors(
        asked, options.max_elements / static_cast<int64_t>(states.size()) / asked.sharding.cores);
    for (const Compared& c : tensors_) {
      result_.elements += c.elements;
      result_.elements_kept += c.kept;
    }
    if (!declared.ours) slack_ = settings_slack(e);
  }

  Status observe_subject(Backend& subject) {
    const bool seen =
        std::ranges::none_of(states_, [](const ProbedState& s) { return s.after.empty(); });
    answered_ = states_;
    if (!seen) {
      TWINRUN_ASSIGN(const auto engine, subject.prepare(asked_));
      for (ProbedState& state : answered_) {
        TWINRUN_ASSIGN(StepResult r, one_step(e_, *engine, state.step, state.states));
        state.after = std::move(r.after);
        state.outputs = std::move(r.outputs);
      }
      result_.subject_steps = static_cast<int64_t>(states_.size());
    }
    TWINRUN_ASSIGN(subject_, observe(e_, nullptr, asked_, tensors_, answered_));
    return Ok{};
  }

  // ---- which precision class

  // Finds the class that contains the subject, or, if none does, the one that it is compared with:
  // fits_[held_].
  Status find_class() {
    if (options_.only) {
      TWINRUN_RETURN_IF_ERROR(try_class(*options_.only));
      return holds(0) || untestable_ ? Status(Ok{}) : settle();
    }
    const auto declared = declared_precision(declared_);
    std::vector<PrecisionClass> classes =
        !declared ? all_classes(declared_, asked_) : classes_within(*declared, declared_, asked_);
    if (declared_.ours) classes.resize(1);
    for (const PrecisionClass& c : classes) {
      if (!c.tight) continue;
      TWINRUN_RETURN_IF_ERROR(try_class(c));
      if (holds(fits_.size() - 1) || untestable_) return Ok{};
    }
    // One way of rounding operands accounts for most tensors, down to its last flips: it is the
    // subject's, and the rest is compared with it.
    const bool narrow = !declared_.ours && results_in_bf16(subject_, tensors_);
    if (const auto most = in_most_tensors()) {
      held_ = *most;
      TWINRUN_RETURN_IF_ERROR(settle());
      const bool own = fits_.size() == 1 || typical_ratio(fits_[held_]) <= kOwn;
      if (own && !(narrow && declared == Precision::kDefault)) return Ok{};
    }
    // Engines with bf16 results declared "default" before there was a word for them. After an
    // all-reduce no gradient shows the format.
    if (declared == Precision::kDefault && !declared_.ours) {
      for (PrecisionClass& c : classes_within(Precision::kAutocast, declared_, asked_)) {
        if (c.results != Rounded::kNone) classes.push_back(std::move(c));
      }
    }
    const bool drawn = !declared || row_of(*declared).results != Rounded::kNone ||
                       declared_.reduced_bits < kF32Bits || declared_.stochastic;
    if (declared) {  // the classes of the declared precision come first
      std::stable_partition(classes.begin(), classes.end(),
                            [&](const PrecisionClass& c) { return c.precision == *declared; });
    }
    const size_t tight = fits_.size();
    std::optional<size_t> holding;
    for (const PrecisionClass& c : classes) {
      if (c.tight) continue;
      TWINRUN_RETURN_IF_ERROR(try_class(c));
      // An engine that declares how it rounds operands is taken to round otherwise only where all
      // of a step shows it.
      if (!drawn && !(narrow && c.results != Rounded::kNone) && !looks_rounded(fits_.back())) {
        fits_.pop_back();
        continue;
      }
      if (!holds(fits_.size() - 1)) continue;
      holding = held_;
      // The best name is a class that contains the subject and whose members are as far off.
      if (declared == c.precision || typical_ratio(fits_.back()) <= kTypical) return Ok{};
    }
    if (holding) {
      held_ = *holding;
      return Ok{};
    }
    if (fits_.size() == tight) return settle();
    size_t nearest = tight;
    for (size_t f = tight; f < fits_.size(); ++f) {
      if (fits_[f].outside < fits_[nearest].outside) nearest = f;
    }
    if (drawn || 2 * fits_[nearest].outside <= fits_[held_].outside) held_ = nearest;
    return settle();
  }

  bool holds(size_t fit) {
    if (fit >= fits_.size() || fits_[fit].outside > 0) return false;
    held_ = fit;
    return true;
  }

  // Before anything is said against the subject, it is compared with all members of its class.
  Status settle() {
    Fit& held = fits_[held_];
    TWINRUN_RETURN_IF_ERROR(look(held, options_.many));
    held.outside = std::ranges::count_if(
        held.found, [&](const Distance& d) { return outside(d, held.threshold); });
    return Ok{};
  }

  Status look(Fit& fit, int members) {
    TWINRUN_RETURN_IF_ERROR(add_members(fit.of, asked_, members, fit.members));
    fit.found = distances(subject_, envelope(fit.members));
    fit.threshold = threshold(fit.members.size(), fit.found.size());
    return Ok{};
  }

  // Two members and three steps show whether a class that is not the declared one is worth trying.
  // It is not where more than a quarter of the distances are far; fit.outside is then the number of
  // distances that they rule out, and fit.values_out is false only for values that they found
  // inside.
  Result<bool> worth_trying(Fit& fit) {
    constexpr size_t kSteps = 3;
    std::vector<ProbedState> few;
    Observed seen;
    seen.replicas = subject_.replicas;
    const size_t stride = tensors_.size() * subject_.replicas;
    std::vector<size_t> places;
    for (const int64_t at : spread_steps(static_cast<int64_t>(states_.size()), kSteps)) {
      const auto s = static_cast<size_t>(at);
      few.push_back(states_[s]);
      for (size_t v = s * stride; v < (s + 1) * stride; ++v) {
        seen.values.push_back(subject_.values[v]);
        places.push_back(v);
      }
    }
    seen.states = few.size();
    std::vector<Observed> members;
    TWINRUN_RETURN_IF_ERROR(add_members(fit.of, asked_, few, kFirstLook, members));
    int64_t looked = 0, far = 0;
    for (const Distance& d : distances(seen, envelope(members))) {
      ++looked;
      far += d.ratio > kWorthTrying ? 1 : 0;
      if (outside(d, kWorthTrying / 10)) {
        ++fit.outside;
      } else if (d.look == Look::kDistance) {
        fit.values_out[places[d.value]] = false;
      }
    }
    if (4 * far <= looked) fit.outside = 0;
    return 4 * far <= looked;
  }

  // Adds the class to fits_, as the last one. If no distance is found, its members are not finite.
  Status try_class(const PrecisionClass& of) {
    Fit fit;
    fit.of = of;
    fit.values_out.assign(subject_.values.size(), true);
    const auto declared = declared_precision(declared_);
    const bool own = declared_.ours || (fits_.empty() && declared == of.precision);
    if (of.tight && !own) {
      TWINRUN_ASSIGN(const bool worth, worth_trying(fit));
      if (!worth) {
        fit.outside = std::max<int64_t>(fit.outside, 1);
        fits_.push_back(std::move(fit));
        return Ok{};
      }
    }
    // Few members show that all is well; more are run before anything is said against the subject.
    TWINRUN_RETURN_IF_ERROR(look(fit, options_.few));
    if (std::ranges::any_of(fit.found, beyond)) TWINRUN_RETURN_IF_ERROR(look(fit, options_.many));
    fit.values_out.assign(subject_.values.size(), false);
    if (fit.found.empty()) {
      untestable_ = true;
      fit.outside = 1;
    }
    for (const Distance& d : fit.found) {
      if (!outside(d, fit.threshold)) continue;
      ++fit.outside;
      if (d.look == Look::kDistance) fit.values_out[d.value] = true;
    }
    if (!fits_.empty() && fit.outside > 0) fit.members.clear();  // made again if need be
    fits_.push_back(std::move(fit));
    return Ok{};
  }

  // The tight class that contains most of the tensors that distinguish classes: those that are
  // outside of at least one.
  std::optional<size_t> in_most_tensors() const {
    if (fits_.size() < 2) return fits_.empty() ? std::nullopt : std::optional<size_t>(0);
    int64_t reported = 0;
    std::vector<int64_t> out(fits_.size());
    for (size_t v = 0; v < subject_.values.size(); ++v) {
      const size_t first = v - v % subject_.replicas;
      if (v != first && subject_.values[v].data == subject_.values[first].data) continue;
      const auto has = [&](const Fit& f) { return f.values_out[v]; };
      if (std::ranges::none_of(fits_, has)) continue;
      ++reported;
      for (size_t f = 0; f < fits_.size(); ++f) out[f] += fits_[f].values_out[v] ? 1 : 0;
    }
    const auto best = std::ranges::min_element(out);
    return 2 * *best <= reported ? std::optional<size_t>(best - out.begin()) : std::nullopt;
  }

  // The median distance of the gradients, in units of what the members of a class are off by.
  double typical_ratio(const Fit& fit) const {
    std::vector<double> ratios;
    for (const Distance& d : fit.found) {
      if (is_gradient(d)) ratios.push_back(d.ratio);
    }
    if (ratios.empty()) return 0;
    const auto middle = ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2);
    std::ranges::nth_element(ratios, middle);
    return *middle;
  }
  bool is_gradient(const Distance& d) const {
    const Compared& c = tensors_[place_of(d.value)];
    return d.look == Look::kDistance && !c.is_state && c.elements > 1 && d.known;
  }

  // Whether the forward pass is that of a tight class. Its losses are then no farther off than
  // those of members, which rounded results would not allow: of engines in autocast that declared
  // "default" they are at least twice as far, so that of eight losses one engine in a hundred would
  // pass for exact. Or the losses are so on one core and far more off on another: all cores of an
  // engine round alike, and two times six numbers of one law are 16 times apart in root mean square
  // once in a million.
  bool has_losses_of(const Fit& fit) const {
    constexpr size_t kFewest = 8, kFewestOfCore = 6;
    constexpr double kOtherCore = 16;
    if (!fit.of.tight || fit.found.empty()) return false;
    std::map<size_t, std::pair<double, size_t>> cores;  // squares of the ratios, and how many
    std::pair<double, size_t> all{0, 0};
    for (const Distance& d : fit.found) {
      if (d.look != Look::kDistance || tensors_[place_of(d.value)].tensor != "loss") continue;
      for (auto* sum : {&cores[d.value % subject_.replicas], &all}) {
        sum->first += d.ratio * d.ratio;
        ++sum->second;
      }
    }
    const auto typical = [](const std::pair<double, size_t>& sum) {
      return std::sqrt(sum.first / static_cast<double>(sum.second));
    };
    if (all.second < kFewest) return false;
    if (typical(all) <= 1) return true;
    double least = HUGE_VAL, most = 0;
    for (const auto& [core, sum] : cores) {
      if (sum.second < kFewestOfCore) continue;
      least = std::min(least, typical(sum));
      most = std::max(most, typical(sum));
    }
    return least <= 1 && most > kOtherCore * least;
  }

  // Whether the gradients of every step are off by what this rounding makes of them: at no step
  // does a tight class that could be the subject's own contain half of them, and half of all are
  // off by at least an eighth of what members of this class are.
  bool looks_rounded(const Fit& loose) const {
    constexpr double kOfMembers = 1.0 / 8;
    if (std::ranges::any_of(fits_, [&](const Fit& f) { return has_losses_of(f); })) return false;
    const size_t stride = tensors_.size() * subject_.replicas;
    std::vector<int64_t> gradients(subject_.states);
    for (const Distance& d : loose.found) gradients[d.value / stride] += is_gradient(d) ? 1 : 0;
    if (std::ranges::find(gradients, 0) != gradients.end()) return false;
    for (const Fit& f : fits_) {
      if (!f.of.tight || f.found.empty() || typical_ratio(f) > kOwn) continue;  // empty: far off
      std::vector<int64_t> held(subject_.states);
      for (const Distance& d : loose.found)
        held[d.value / stride] += is_gradient(d) && !f.values_out[d.value] ? 1 : 0;
      for (size_t s = 0; s < subject_.states; ++s) {
        if (2 * held[s] >= gradients[s]) return false;
      }
    }
    return typical_ratio(loose) >= kOfMembers;
  }

  Envelope envelope(const std::vector<Observed>& members) const {
    return envelope_of(members, slack_);
  }

  // Members of the class that the subject is compared with.
  Status add_members(const Program& program, int wanted, std::vector<Observed>& members) {
    return add_members(fits_[held_].of, program, wanted, members);
  }
  // `experiment`: supplies the feed that the program reads; nullptr: the requested one.
  Status add_members(const PrecisionClass& of, const Program& program, int wanted,
                     std::vector<Observed>& members, const Experiment* experiment = nullptr) {
    return add_members(of, program, states_, wanted, members, experiment);
  }
  // `map`: how the program's state corresponds to the requested one; nullptr: they are the same.
  Status add_members(const PrecisionClass& of, const Program& program,
                     const std::vector<ProbedState>& states, int wanted,
                     std::vector<Observed>& members, const Experiment* experiment = nullptr,
                     const StateMap* map = nullptr) {
    while (static_cast<int>(members.size()) < wanted) {
      const auto number = static_cast<uint64_t>(members.size()) + 1;
      TWINRUN_ASSIGN(Observed o, conforming().member(of, number,
                                                     {program, states, experiment, 1, true, map,
                                                      options_.history}));
      members.push_back(std::move(o));
      result_.member_steps += static_cast<int64_t>(states.size());
    }
    return Ok{};
  }

  // Members with odd numbers are moved: all of these, and every second one of the ensemble's own.
  Status add_deciders(const PrecisionClass& of, const Program& program,
                      std::vector<Observed>& members, const Experiment* experiment,
                      const StateMap* map) {
    for (int k = 0; k < kDeciders; ++k) {
      const uint64_t number = 2 * static_cast<uint64_t>(k) + 1001;
      TWINRUN_ASSIGN(Observed o, conforming().member(of, number,
                                                     {program, states_, experiment, kFurther, true,
                                                      map, options_.history}));
      members.push_back(std::move(o));
      result_.member_steps += static_cast<int64_t>(states_.size());
    }
    return Ok{};
  }

  // Predicts in binary64 what conforming engines of the subject's class compute, up to rounding.
  Result<Observed> predict(const Program& program, const std::vector<ProbedState>& states,
                           const Experiment* experiment = nullptr, const StateMap* map = nullptr) {
    result_.exact_steps += static_cast<int64_t>(states.size());
    return conforming().exact(fits_[held_].of,
                              {program, states, experiment, 1, true, map, options_.history});
  }

  ConformingMembers conforming() const {
    return {e_, asked_, declared_, tensors_, answered_, options_.threads};
  }

  // Whether the subject, run again from the same states, is nearer to itself than to the expected
  // values: twice as near, in at least half of the tensors outside. A single number may repeat by
  // chance and does not count.
  Result<bool> repeatable(Backend& subject, const std::vector<Distance>& found,
                          const Envelope& conforming) {
    std::vector<ProbedState> again = states_;
    for (ProbedState& state : again) state.after.clear();
    TWINRUN_ASSIGN(const auto engine, subject.prepare(asked_));
    TWINRUN_ASSIGN(const Observed one, observe(e_, engine.get(), asked_, tensors_, again));
    TWINRUN_ASSIGN(const Observed two, observe(e_, engine.get(), asked_, tensors_, again));
    result_.subject_steps += 2 * static_cast<int64_t>(again.size());
    result_.draws = std::ranges::any_of(
        asked_.graph.ops(), [](const Op& op) { return class_of(op.kind) == OpClass::kRandom; });
    int64_t near = 0, far = 0;
    for (const Distance& d : found) {
      const std::vector<float>& x = *subject_.values[d.value].data;
      if (d.look != Look::kDistance || !outside(d) || x.size() < 2) continue;
      // No spread between runs excuses NaN where conforming engines are finite.
      if (!std::isfinite(norm2(x))) {
        ++near;
        continue;
      }
      const double gap = gap2(*one.values[d.value].data, *two.values[d.value].data);
      const double apart = std::isfinite(gap) ? gap : INFINITY;
      if (2 * apart < gap2(x, *conforming.values[d.value].mean)) {
        ++near;
        continue;
      }
      ++far;
      const double size = norm2(*conforming.values[d.value].mean);
      if (size > 0) result_.apart = std::max(result_.apart, apart / size);
    }
    return far <= near;
  }

  // Finds a precision beyond the declared one that would explain the subject.
  Status undeclared_precision() {
    const auto declared = declared_precision(declared_);
    if (declared_.ours || !declared) return Ok{};
    const bool narrow = results_in_bf16(subject_, tensors_);
    // A precision applies to a whole step: where most of it is as declared, no precision explains
    // the rest. Nor does any where the loss is as declared: products of the forward pass would be
    // rounded first.
    int64_t known = 0, out = 0, losses = 0, losses_out = 0;
    for (const Distance& d : fits_[held_].found) {
      if (d.look != Look::kDistance) continue;
      if (tensors_[place_of(d.value)].tensor == "loss") {
        ++losses;
        losses_out += outside(d) ? 1 : 0;
      }
      if (!d.known) continue;
      ++known;
      out += outside(d) ? 1 : 0;
    }
    if (!narrow && (2 * out < known || 2 * losses_out < losses)) return Ok{};
    const auto say = [&](Precision precision, const std::string& does) {
      result_.computes_as = row_of(precision).word;
      result_.undeclared = result_.computes = does;
    };
    // The format of its numbers shows it, whatever else is wrong with the subject.
    if (narrow && row_of(*declared).result_bits > kBf16Bits) {
      say(Precision::kAutocast, std::string(row_of(Precision::kAutocast).does));
      result_.in_its_numbers = true;
      return Ok{};
    }
    const size_t tried = fits_.size();
    for (const PrecisionClass& c : classes_beyond(*declared, declared_, asked_)) {
      TWINRUN_RETURN_IF_ERROR(try_class(c));
      const Fit& fit = fits_.back();
      if (fit.outside > 0 || (!c.tight && !looks_rounded(fit))) continue;
      say(c.precision, c.does);
      break;
    }
    fits_.resize(tried);
    return Ok{};
  }

  double threshold(size_t members, size_t comparisons) const {
    return student_limit(members, options_.false_alarm / static_cast<double>(comparisons));
  }
  static bool outside(const Distance& d, double threshold) {
    return d.ratio > threshold && beyond(d);
  }
  bool outside(const Distance& d) const { return outside(d, result_.threshold); }

  int64_t count_outside(const std::vector<Distance>& found) const {
    return std::ranges::count_if(found, [&](const Distance& d) { return outside(d); });
  }
  // Counts a tensor once per step and replica.
  int64_t tensors_outside(const std::vector<Distance>& found) const {
    std::set<size_t> values;
    for (const Distance& d : found) {
      if (outside(d)) values.insert(d.value);
    }
    return static_cast<int64_t>(values.size());
  }
  static double largest(const std::vector<Distance>& found) {
    double ratio = 0;
    for (const Distance& d : found) ratio = std::max(ratio, d.ratio);
    return ratio;
  }

  size_t place_of(size_t value) const { return value / subject_.replicas % tensors_.size(); }

  const Experiment& e_;
  const Program& asked_;
  const std::vector<ProbedState>& states_;
  std::vector<ProbedState> answered_;  // the same, with what the subject made of them
  IdentifyOptions options_;
  Capabilities declared_;
  std::vector<Compared> tensors_;
  SettingsSlack slack_;
  std::deque<Fit> fits_;  // classes that were tried, in that order
  bool untestable_ = false;
  size_t held_ = 0;  // index of the class that the subject is compared with
  Identification result_;
  Observed subject_;
};

}  // namespace twinrun
