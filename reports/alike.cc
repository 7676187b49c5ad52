// Words and sentences that every format shares.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "reports/run_names.h"
#include "reports/text.h"

namespace twinrun::text {

std::string_view meaning(VerdictClass verdict) {
  switch (verdict) {
    case VerdictClass::kIdentical:
      return "the subject gives the same bits as the reference";
    case VerdictClass::kNoise:
      return "the difference is one that a correct engine may show";
    case VerdictClass::kSharding:
      return "splitting the batch changed the result; no engine fault was found";
    case VerdictClass::kProgram:
      return "the two sides do not compute the same function; no engine fault was found";
    case VerdictClass::kEngineBug:
      return "the engine computed what its declared arithmetic cannot produce";
    case VerdictClass::kNondeterministic:
      return "the same run does not give the same bits again";
    case VerdictClass::kInconclusive:
      return "the evidence does not decide; see what to run next";
  }
  return "";
}

std::string_view meaning(char level) {
  switch (level) {
    case 'A':
      return "every op was seen, and the engine states its arithmetic";
    case 'B':
      return "every op was seen; the engine states no arithmetic";
    case 'C':
      return "only tensors were seen, so a claim is a rate and never certain";
    default:
      return "";
  }
}

std::span<const std::string> glossary() {
  static const std::vector<std::string> lines = [] {
    // Two lines: the runs of the experiment, and their controls.
    std::string runs, controls;
    for (const RunName& run : run_names()) {
      const bool control = run.name == "R2" || run.name.ends_with('\'');
      std::string& line = control ? controls : runs;
      line += fmt::format("{}{}: {}", line.empty() ? "" : "; ", run.name, run.words);
    }
    return std::vector<std::string>{
        runs +
            ". All train the same program on the same data. T - S is the engine's part, S - R "
            "sharding's, T - R both.",
        controls + ".",
        "expected: the same op in double precision (the oracle), on the inputs that the engine "
        "itself read; allowed, or bound: the largest error that the declared rounding can cause "
        "there.",
        "conforming engines: simulated engines that keep every bound that the engine declares.",
        "a claim about an engine of which only tensors were seen is a rate, and never certain."};
  }();
  return lines;
}

std::string engine_name(std::string_view id) {
  constexpr std::string_view kOurs = "tpu";
  const bool ours = id.starts_with(kOurs) && (id.size() == kOurs.size() ||
                                              id[kOurs.size()] == ' ' || id[kOurs.size()] == ',');
  return ours ? "emulated TPU" + std::string(id.substr(kOurs.size())) : std::string(id);
}

std::string first_apart(const Report& r) {
  for (const ProofRow& row : r.proofs) {
    if (r.verdict == VerdictClass::kSharding && !row.diverges_at.empty())
      return "the first value that is not the whole batch's is " + row.diverges_at;
  }
  return "";
}

std::string number_of(const Finding& f) {
  if (!f.number_text.empty()) return f.number_text;
  return f.number == 0 && f.bound == 0 ? "" : against_bound(f.number, f.bound);
}

std::string failure_of(const Control& c) {
  if (!c.run || c.passed) return "";
  return c.failure.empty()
             ? fmt::format("A control failed: {}. Nothing below is certain until it passes.",
                           c.name)
             : c.failure;
}

std::string change_of(const TrajectoryRow& row, double change) {
  return row.metric == kAccuracyMetric ? signed_number(100 * change) + " points"
                                       : signed_number(change);
}

std::string size_of(const TrajectoryRow& row, double change) {
  return change_of(row, std::fabs(change)).substr(1);
}

std::string interval_of(const TrajectoryRow& row) {
  if (row.differences.size() < 2) return "- (one seed)";
  if (!std::isfinite(row.mean)) return "-";
  return row.metric == kAccuracyMetric ? interval(100 * row.low, 100 * row.high)
                                       : interval(row.low, row.high);
}

std::string margin_of(const TrajectoryRow& row) {
  return row.margin == 0 ? "none" : size_of(row, row.margin);
}

std::string outcome_of(const TrajectoryRow& row) {
  return row.differences.size() < 2 && row.outcome != PairedOutcome::kIdentical &&
                 row.outcome != PairedOutcome::kHarmful
             ? "not tested"
             : std::string(to_string(row.outcome));
}

std::string cured(const CureRow& c) {
  return c.outcome == CureOutcome::kUndecided
             ? fmt::format(
                   "with {} the seeds do not decide whether the subject ends within the seed "
                   "noise of the reference",
                   c.cure)
             : fmt::format("with {} the subject ends {} of the reference", c.cure,
                           to_string(c.outcome));
}

std::string cure_of(const CureRow& c) {
  std::string text = cured(c);
  for (size_t i = 0; i < c.left.size(); ++i) {
    const TrajectoryRow& row = c.left[i];
    text += fmt::format("{} {} {} of {}",
                        i == 0 ? ": the remaining difference, " + row.pair + ", is" : " and",
                        change_of(row, row.mean), interval_of(row), row.metric);
  }
  text += fmt::format(
      " over {} paired seeds. Held-out loss: {} without the cure, {} with it, {} of the "
      "reference.",
      c.seeds, number(c.loss_before, 4), number(c.loss, 4), number(c.loss_reference, 4));
  if (!std::isnan(c.accuracy))
    text += fmt::format(" Accuracy: {}, {}, {}.", percent(c.accuracy_before), percent(c.accuracy),
                        percent(c.accuracy_reference));
  return text;
}

std::string effect_of(const Report& r) {
  return r.effect_text.empty() ? std::string(to_string(r.effect))
                               : fmt::format("{}: {}", to_string(r.effect), r.effect_text);
}

std::string trials_of(const Report& r) {
  if (r.trajectories.empty() || r.trajectories.front().differences.size() < 2) return "";
  return fmt::format(
      "All intervals of all looks and metrics together hold with 95% (each with {}). Harmful or "
      "beneficial: the interval excludes 0{}; none detected: it contains 0, and these seeds "
      "would have detected {}.",
      percent(r.trajectories.front().level, 1),
      r.trajectories.front().margin > 0 ? " and the declared margin" : "",
      r.trajectories.front().margin > 0 ? "an effect as large as the margin"
                                        : "an effect of two standard deviations between seeds");
}

std::string worst_of(const ProbeRow& row) {
  return std::isfinite(row.worst_ratio) ? magnitude(row.worst_ratio) : "wrong bits";
}

std::string unbounded(int64_t elements) {
  return elements == 0 ? "" : fmt::format(", {} without a finite bound", count(elements));
}

std::string ablation_of(const AblationRow& row) {
  return row.direction == "restored in S"      ? "undone"
         : row.direction == "introduced alone" ? "added alone"
                                               : row.direction;
}

std::string effect_of(const AblationRow& row) {
  if (row.direction == "introduced alone") return row.explains ? "has an effect" : "no effect";
  if (!row.explains) return "no";
  return row.share > 0 ? fmt::format("yes, {}", share(row.share)) : "yes";
}

std::string interaction_of(const Report& r) {
  if (r.unexplained == 0 || !std::isfinite(r.unexplained) || r.verdict == VerdictClass::kEngineBug)
    return "";
  return fmt::format(
      "{} of held-out loss: the engine's effect on all cores minus its effect on one core "
      "and that core's smaller batch. The difference of two single runs; no verdict rests on it.",
      signed_number(r.unexplained));
}

std::vector<Telling> tellings_of(const std::vector<Finding>& findings, size_t bugs_in_full) {
  std::vector<Telling> out;
  std::vector<size_t> full;
  for (size_t i = 0; i < findings.size(); ++i) {
    out.emplace_back();
    if (findings[i].verdict != VerdictClass::kEngineBug) continue;
    const auto alike = std::ranges::find_if(
        full, [&](size_t k) { return findings[k].fingerprint == findings[i].fingerprint; });
    if (alike != full.end()) {
      out.back() = {false, *alike + 1};
    } else if (full.size() >= bugs_in_full) {
      out.back() = {false, 0};
    } else {
      full.push_back(i);
    }
  }
  return out;
}

std::string probe_line(const EngineProbe& p) {
  int64_t outside = 0;
  for (const ProbeRow& row : p.rows) outside += row.outside;
  const std::string words = fmt::format(
      "{} on {}: {} of {} ({}), {}, {} checked, {} outside{}", p.pair, engine_name(p.engine),
      count(p.steps_probed), plural(p.steps, "step"), p.policy, plural(p.ops, "op"),
      plural(p.elements, "element"), count(outside), unbounded(p.untestable));
  return p.dot_residual_text.empty()
             ? words
             : fmt::format("{}; measured relative rounding of dot operands {}", words,
                           p.dot_residual_text);
}

std::vector<std::pair<std::string, std::string>> commands_of(const Report& r, size_t most) {
  std::vector<std::pair<std::string, std::string>> out;
  std::vector<std::string> seen = {r.command, ""};
  if (!r.command.empty())
    out.emplace_back(
        fmt::format("the whole diagnosis; exits with {}", exit_code(r.verdict, r.effect)),
        r.command);
  for (size_t i = 0; i < std::min(r.findings.size(), most); ++i) {
    const std::string& again = r.findings[i].reproduce;
    if (std::ranges::find(seen, again) != seen.end()) continue;
    seen.push_back(again);
    out.emplace_back(fmt::format("only finding {}", i + 1), again);
  }
  return out;
}

}  // namespace twinrun::text
