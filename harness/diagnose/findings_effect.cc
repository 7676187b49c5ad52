// The effect on what is learnt: the second answer of the report, and the sentences and numbers that
// findings quote of it.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "harness/diagnose/findings.h"
#include "reports/run_names.h"
#include "reports/text.h"

namespace twinrun {
namespace {

std::string seeds_text(const TrajectoryRow& row) {
  return text::plural(static_cast<int64_t>(row.differences.size()), "paired seed");
}

// The smallest margin of two digits, rounded up, that contains the whole interval; 0: there is
// none.
double accepting_margin(const TrajectoryRow& row) {
  const double least = std::max(std::fabs(row.low), std::fabs(row.high));
  if (!(least > 0) || !std::isfinite(least)) return 0;
  const double digit = std::pow(10, std::floor(std::log10(least)) - 1);
  return std::stod(fmt::format("{:.1e}", (std::floor(least / digit) + 1) * digit));
}

// Why the effect was not tested.
std::string not_asked(const Evidence& e, VerdictClass verdict) {
  if (e.reference_diverges_at || e.reference_non_finite)
    return "the reference fails its control, so nothing can be compared with it";
  if (e.engine_failure) return "the engine failed";
  if (verdict == VerdictClass::kEngineBug)
    return "not tested: the runs of a faulty engine say nothing about the program";
  if (!e.held_out) return "no held-out batches were given (--held-out FILE)";
  if (e.quick) return "not tested: --quick trains no seeds";
  if (e.trajectories.empty()) return "not tested";
  return "not tested: one seed gives no interval (--set diagnose.seeds=3)";
}

std::string not_learnt_text(const Learning& learning) {
  return fmt::format(
      "the reference has not learnt: its held-out loss is {}, that of the initial weights {}{}; "
      "try "
      "--set train.steps={}",
      text::number(learning.reference, 4), text::number(learning.initial, 4),
      learning.prior ? fmt::format(", and {} of predicting the classes' frequencies alone",
                                   text::number(*learning.prior, 4))
                     : "",
      learning.steps_to_try);
}

}  // namespace

std::string capitalized(std::string sentence) {
  if (!sentence.empty())
    sentence[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(sentence[0])));
  return sentence;
}

std::string lower_first(std::string sentence) {
  if (!sentence.empty())
    sentence[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(sentence[0])));
  return sentence;
}

const TrajectoryRow* find_row(const Evidence& e, const std::string& pair) {
  return speaking(e.trajectories, pair);
}

bool has_interval(const TrajectoryRow* row) {
  return row != nullptr && row->differences.size() > 1;
}

std::string effect_words(const TrajectoryRow& row) {
  const std::string metric = capitalized(row.metric);
  if (row.outcome == PairedOutcome::kIdentical)
    return fmt::format("{} is the same in each of {}", metric, seeds_text(row));
  if (!std::isfinite(row.mean)) return "A run ended in NaN or Inf";
  if (row.differences.size() < 2)
    return fmt::format("{} moves by {} in one seed", metric, text::change_of(row, row.mean));
  const std::string interval = text::interval_of(row);
  switch (effect_of(row)) {
    case Effect::kHarmful:
    case Effect::kBeneficial:
    case Effect::kWithinMargin:
      return fmt::format("{} is {} {} ({}), {}, in {}", metric, text::size_of(row, row.mean),
                         row.mean > 0 ? "higher" : "lower", is_worse(row) ? "worse" : "better",
                         interval, seeds_text(row));
    case Effect::kNoneDetected:
      return fmt::format("{} moves by {} {} in {}, which would have shown a change of {}", metric,
                         text::change_of(row, row.mean), interval, seeds_text(row),
                         text::size_of(row, row.detectable));
    case Effect::kSeedNoise:
    case Effect::kUndecided:
      break;
  }
  return fmt::format(
      "{} moves by {} {} in {}, which is not decided: they show changes of {} or more", metric,
      text::change_of(row, row.mean), interval, seeds_text(row),
      text::size_of(row, row.detectable));
}

std::string effect_number(const TrajectoryRow& row) {
  const std::string moves = text::words_of_pair(row.pair);
  if (row.outcome == PairedOutcome::kIdentical)
    return fmt::format("{} is not moved {}, in any seed", row.metric, moves);
  const std::string mean =
      fmt::format("{} is moved by {} {}", row.metric, text::change_of(row, row.mean), moves);
  if (!std::isfinite(row.mean)) return mean + ": a run ended in NaN or Inf";
  if (row.differences.size() < 2) return mean + " in one seed: no interval";
  return fmt::format("{}, interval {}, in {}: {}", mean, text::interval_of(row), seeds_text(row),
                     to_string(row.outcome));
}

void set_effect(const TrajectoryRow& row, Finding& f) {
  f.number = row.mean;
  f.bound = row.margin;
  f.number_text = effect_number(row);
  f.bound_source = !has_interval(&row) ? "an interval takes two seeds or more"
                   : row.margin > 0
                       ? fmt::format("the declared margin, {} ({})", text::size_of(row, row.margin),
                                     row.margin_source)
                       : "no margin is declared: an effect is one whose interval leaves 0";
}

std::string trials_text(const TrajectoryRow& row) {
  return fmt::format("95% over all looks and metrics: t intervals of {}, each of {}",
                     seeds_text(row), text::percent(row.level, 1));
}

std::string what_decides(const std::vector<const TrajectoryRow*>& rows) {
  int seeds = 0;
  double spread = 0;
  bool reachable = true, several = false;
  const TrajectoryRow* widest = nullptr;
  for (const TrajectoryRow* row : rows) {
    if (row == nullptr) continue;
    several = several || row->differences.size() > 1;
    if (widest == nullptr || accepting_margin(*row) > accepting_margin(*widest)) widest = row;
    if (row->outcome != PairedOutcome::kUndecided) continue;
    reachable = reachable && row->would_decide > 0;
    seeds = std::max(seeds, row->would_decide);
    spread = std::max(spread, row->seed_spread);
  }
  if (!several) return "run several seeds to measure the spread: --set diagnose.seeds=3";
  const std::string more =
      !reachable  ? "not even 1000 seeds would decide: the difference is too small for its spread"
      : seeds > 0 ? fmt::format(
                        "about {0} seeds would decide, if mean and spread stay as they are: "
                        "--set diagnose.max_seeds={0}",
                        seeds)
                  : "";
  const double margin = widest == nullptr ? 0 : accepting_margin(*widest);
  if (margin == 0) return more.empty() ? "a run that ended in NaN or Inf cannot be compared" : more;
  const bool accuracy = widest->metric == kAccuracyMetric;
  return fmt::format("{}{}if a change of {} of {} does not matter to you: --set diagnose.{}={:g}",
                     more, more.empty() ? "" : "; or, ", text::size_of(*widest, margin),
                     widest->metric, accuracy ? "accuracy_margin" : "margin", margin);
}

std::string unresolved_text(const TrajectoryRow& row) {
  return fmt::format(
      "The engine's own effect is not resolved: {} would show a change of {} or more of {}.",
      seeds_text(row), text::size_of(row, row.detectable), row.metric);
}

void answer_effect(const Evidence& e, Judgement& j) {
  if (j.verdict == VerdictClass::kIdentical) {
    j.effect = Effect::kNoneDetected;
    j.effect_text = "the runs are equal to the bit";
    return;
  }
  const TrajectoryRow *sr = find_row(e, "S - R"), *tr = find_row(e, "T - R");
  // Report S - R if the change of meaning has a significant effect by itself, else T - R, which the
  // user sees. An S - R within the margin does not hide a significant T - R.
  const bool own =
      is_significant(sr) && !(effect_of(*sr) == Effect::kWithinMargin && is_significant(tr));
  const TrajectoryRow* row = own ? sr : tr;
  if (row == nullptr || row->differences.size() < 2 || j.verdict == VerdictClass::kEngineBug) {
    j.effect_text = not_asked(e, j.verdict);
    return;
  }
  j.effect_metric = row->metric;
  if (e.learning && !e.learning->learnt) {
    j.effect_text = not_learnt_text(*e.learning);
    if (is_significant(row)) j.effect_text += fmt::format(". {}", effect_words(*row));
    j.next_steps.push_back(
        fmt::format("let the reference learn, so that an effect can be seen: --set train.steps={}",
                    e.learning->steps_to_try));
    return;
  }
  j.effect = effect_of(*row);
  // An interval inside a declared margin is, whether or not it holds 0: what was accepted is accepted.
  if (j.verdict == VerdictClass::kSharding && j.effect == Effect::kNoneDetected && row->margin > 0)
    j.effect = Effect::kWithinMargin;
  j.effect_text = lower_first(effect_words(*row));
  // The headline may speak of the other pair of runs.
  if (j.verdict == VerdictClass::kSharding) j.effect_text += ", " + text::words_of_pair(row->pair);
  if (j.verdict == VerdictClass::kNoise && j.effect == Effect::kHarmful &&
      e.subject.precision != DotPrecision::kF32)
    j.next_steps.push_back(
        "see whether it is the operands' precision that costs this: --set tpu.precision=highest");
  // Many paired seeds resolve what rounding does to the metric long before it matters: a change that
  // lies, interval and all, inside one standard deviation between seeds is noise like the rest.
  const double largest = std::max(std::fabs(row->low), std::fabs(row->high));
  if (j.verdict == VerdictClass::kNoise && largest <= row->seed_spread &&
      (j.effect == Effect::kHarmful || j.effect == Effect::kBeneficial)) {
    j.effect = Effect::kSeedNoise;
    j.effect_text = fmt::format(
        "{} is {} {} ({}), in {}: {} of what another seed moves it ({}, standard deviation)",
        row->metric, text::size_of(*row, row->mean), row->mean > 0 ? "higher" : "lower",
        text::interval_of(*row), seeds_text(*row),
        text::percent(std::fabs(row->mean) / row->seed_spread, 1),
        text::size_of(*row, row->seed_spread));
    return;
  }
  if (is_significant(row) && row->seed_spread > 0 && std::isfinite(row->mean))
    j.effect_text += fmt::format("; another seed moves it by {} (standard deviation)",
                                 text::size_of(*row, row->seed_spread));
  if (j.effect == Effect::kWithinMargin)
    j.effect_text += fmt::format("; {} declares a margin of {}", row->margin_source,
                                 text::size_of(*row, row->margin));
}

}  // namespace twinrun
