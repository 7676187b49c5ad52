// Renders the statistics of a drill as terminal text, Markdown and JSON.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/drill/matrix.h"
#include "reports/csv.h"
#include "reports/markdown_text.h"

namespace twinrun::drill {
namespace {

using nlohmann::json;
using Table = std::vector<std::vector<std::string>>;  // the first row is the header

std::string percent(double share) {
  // Never round up to 100 %: 99.96 % is shown as 99.9.
  const std::string text = fmt::format("{:.1f}", 100 * share);
  return text == "100.0" && share < 1 ? "99.9" : text;
}

std::string text_of(const Rate& r) {
  if (r.n == 0) return "-";
  return fmt::format("{}/{} = {} % [{}, {}]", r.k, r.n, percent(r.share()), percent(r.low),
                     percent(r.high));
}
std::string short_text(const Rate& r) { return r.n == 0 ? "-" : fmt::format("{}/{}", r.k, r.n); }

constexpr std::array<const char*, 8> kVerdicts = {"IDENTICAL",    "NOISE",      "SHARDING",
                                                  "PROGRAM",      "ENGINE_BUG", "NONDETERMINISTIC",
                                                  "INCONCLUSIVE", "error"};

Table target_table(const DrillSummary& d) {
  Table t = {{"what", "measured", "target", ""}};
  for (const Target& target : d.targets) {
    t.push_back({target.what, text_of(target.rate),
                 target.at_most ? fmt::format("{}", target.wanted)
                                : fmt::format(">= {:g} %", 100 * target.wanted),
                 target.met() ? "met" : "MISSED"});
  }
  return t;
}

Table matrix_table(const DrillSummary& d) {
  Table t = {{"truth", "level"}};
  std::vector<const char*> shown;
  for (const char* v : kVerdicts) {
    if (std::ranges::any_of(d.matrix, [&](const MatrixRow& r) { return r.verdicts.contains(v); }))
      shown.push_back(v);
  }
  for (const char* v : shown) t[0].emplace_back(v);
  t[0].emplace_back("right");
  for (const MatrixRow& row : d.matrix) {
    std::vector<std::string> line = {std::string(to_string(row.kind)), std::string(1, row.level)};
    for (const char* v : shown) {
      const auto it = row.verdicts.find(v);
      line.push_back(it == row.verdicts.end() ? "." : std::to_string(it->second));
    }
    line.push_back(text_of(row.right));
    t.push_back(std::move(line));
  }
  return t;
}

std::string power_text(const KindRow& row) {
  std::string text;
  for (const auto& [magnitude, rate] : row.power)
    text += fmt::format("{}{:g}: {}", text.empty() ? "" : ", ", magnitude, short_text(rate));
  return text;
}

Table fault_table(const DrillSummary& d) {
  Table t = {{"kind", "cases", "inert", "inside", "outside, flagged", "op", "first step", "core",
              "runs", "power by magnitude"}};
  for (const KindRow& r : d.faults) {
    t.push_back({r.kind, std::to_string(r.cases), std::to_string(r.inert), std::to_string(r.inside),
                 short_text(r.flagged), short_text(r.op), short_text(r.step), short_text(r.core),
                 std::to_string(r.executions), power_text(r)});
  }
  return t;
}

Table cause_table(const DrillSummary& d) {
  Table t = {{"cause", "cases", "without effect", "named", "class right", "effect right"}};
  for (const KindRow& r : d.causes) {
    t.push_back({r.kind, std::to_string(r.cases), std::to_string(r.inert), short_text(r.cause),
                 short_text(r.verdict), short_text(r.effect)});
  }
  return t;
}

std::string aligned(const Table& table) {
  std::vector<size_t> width(table[0].size(), 0);
  for (const auto& row : table) {
    for (size_t i = 0; i < row.size(); ++i) width[i] = std::max(width[i], row[i].size());
  }
  std::string text;
  for (const auto& row : table) {
    std::string line = " ";
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format(" {:<{}}", row[i], width[i]);
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string piped(const Table& table) {
  std::string text;
  for (size_t r = 0; r < table.size(); ++r) {
    text += "|";
    for (const auto& cell : table[r]) text += fmt::format(" {} |", cell);
    text += "\n";
    if (r > 0) continue;
    text += "|";
    for (size_t i = 0; i < table[0].size(); ++i) text += "---|";
    text += "\n";
  }
  return text;
}

std::string said(const DrillSummary& d) {
  std::string text = fmt::format("{} cases, seed {}", d.cases, fmt::join(d.seeds, ", "));
  if (d.errors > 0) text += fmt::format(", {} of them failed", d.errors);
  return text;
}

std::string clean_text(const DrillSummary& d) {
  if (d.false_alarms.n == 0) return "";
  // The rule of three holds for large n only.
  const std::string bound = d.false_alarms.n < 30 ? ""
                                                  : fmt::format(": below {:.2g} % (3/n, 95 %)",
                                                                100 * d.false_alarm_bound);
  std::string text =
      d.false_alarms.k == 0
          ? fmt::format("No false alarm in {} clean pairs{}.", d.false_alarms.n, bound)
          : fmt::format("{} false alarms in {} clean pairs.", d.false_alarms.k, d.false_alarms.n);
  text += fmt::format(" {} distinct pairs of scenario and variant, in {} scenarios:", d.clusters,
                      d.clean_by_scenario.size());
  for (const auto& [scenario, n] : d.clean_by_scenario) text += fmt::format(" {} {}", scenario, n);
  text += ".";
  if (d.clean_effects.k > 0)
    text += fmt::format(
        " In {} of them, rounding alone changed the held-out metrics (effect harmful or "
        "beneficial, class NOISE).",
        short_text(d.clean_effects));
  return text;
}

std::string hidden_text(const DrillSummary& d) {
  if (d.hidden.n == 0) return "";
  return fmt::format(
      "Level C: {} more faults are outside in their op alone; no tensor of a step differs by more "
      "than among conforming engines. {} of them were flagged.",
      d.hidden.n, d.hidden.k);
}

std::string runs_text(const DrillSummary& d) {
  if (d.max_executions == 0) return "";
  return fmt::format(
      "Runs of the subject to find step, op and core: {:.1f} on average, {} at most. Most of them "
      "are single steps; together they take as many steps as {:.1f} whole runs.",
      d.executions, d.max_executions, d.run_lengths);
}

json json_of(const Rate& r) { return {{"k", r.k}, {"n", r.n}, {"low", r.low}, {"high", r.high}}; }

json json_of(const KindRow& r) {
  json power = json::array();
  for (const auto& [magnitude, rate] : r.power)
    power.push_back({{"magnitude", magnitude}, {"flagged", json_of(rate)}});
  return {{"kind", r.kind},
          {"cases", r.cases},
          {"inert", r.inert},
          {"inside", r.inside},
          {"flagged", json_of(r.flagged)},
          {"op", json_of(r.op)},
          {"step", json_of(r.step)},
          {"core", json_of(r.core)},
          {"named", json_of(r.cause)},
          {"class", json_of(r.verdict)},
          {"effect", json_of(r.effect)},
          {"executions", r.executions},
          {"power", power}};
}

}  // namespace

std::string to_terminal(const DrillSummary& d) {
  std::string text = said(d) +
                     fmt::format(
                         "; {:.1f} core-seconds per case ({:.1f} of them to determine the "
                         "truth).\n\nTargets\n",
                         d.seconds + d.truth_seconds, d.truth_seconds) +
                     aligned(target_table(d)) + "\nTruth and verdict\n" + aligned(matrix_table(d));
  if (!d.faults.empty()) text += "\nFaults of the engine\n" + aligned(fault_table(d));
  if (!d.causes.empty()) text += "\nCauses of sharding\n" + aligned(cause_table(d));
  for (const auto& line : {clean_text(d), hidden_text(d), runs_text(d)}) {
    if (!line.empty()) text += "\n" + line + "\n";
  }
  if (!d.misses.empty()) text += "\nMisses (twinrun_dev drill --case ID repeats one)\n";
  for (const auto& miss : d.misses) text += "  " + miss + "\n";
  return text;
}

std::string to_markdown(const DrillSummary& d) {
  const text::Pieces md(0);
  std::string text = said(d) + ".\n\n";
  text += piped(target_table(d)) + "\n### Truth and verdict\n" + piped(matrix_table(d));
  if (!d.faults.empty()) text += "\n### Faults of the engine\n" + piped(fault_table(d));
  if (!d.causes.empty()) text += "\n### Causes of sharding\n" + piped(cause_table(d));
  for (const auto& line : {clean_text(d), hidden_text(d), runs_text(d)}) {
    if (!line.empty()) text += "\n" + line + "\n";
  }
  if (!d.misses.empty()) text += "\n### Misses\n";
  for (const auto& miss : d.misses) text += "- " + md.prose(miss, 2000) + "\n";
  return text;
}

std::string to_json(const DrillSummary& d) {
  json targets = json::array(), matrix = json::array(), faults = json::array(),
       causes = json::array();
  for (const Target& t : d.targets) {
    targets.push_back({{"what", t.what},
                       {"rate", json_of(t.rate)},
                       {"wanted", t.wanted},
                       {"at_most", t.at_most},
                       {"met", t.met()}});
  }
  for (const MatrixRow& row : d.matrix) {
    matrix.push_back({{"truth", to_string(row.kind)},
                      {"level", std::string(1, row.level)},
                      {"verdicts", row.verdicts},
                      {"right", json_of(row.right)}});
  }
  for (const KindRow& row : d.faults) faults.push_back(json_of(row));
  for (const KindRow& row : d.causes) causes.push_back(json_of(row));
  const json document = {{"schema", 2},
                         {"seeds", d.seeds},
                         {"cases", d.cases},
                         {"errors", d.errors},
                         {"targets", targets},
                         {"matrix", matrix},
                         {"faults", faults},
                         {"causes", causes},
                         {"hidden", json_of(d.hidden)},
                         {"false_alarms", json_of(d.false_alarms)},
                         {"false_alarm_bound", d.false_alarm_bound},
                         {"clusters", d.clusters},
                         {"clean_by_scenario", d.clean_by_scenario},
                         {"executions", d.executions},
                         {"most_executions", d.max_executions},
                         {"misses", d.misses}};
  return document.dump(2, ' ', false, json::error_handler_t::replace);
}

std::string to_csv(const std::vector<CaseRecord>& records) {
  std::string text =
      "id,stratum,level,scenario,seed,cores,precision,kind,fault,op,cause,magnitude,truth,distance,"
      "meaning,matters,verdict,effect,right,flagged,op_named,step_named,core_named,cause_named,"
      "executions,run_lengths,headline,error\r\n";
  const auto yes = [](bool value) { return value ? "true" : "false"; };
  for (const CaseRecord& r : records) {
    const DrillCase& c = r.injected;
    const Score s = score(r);
    const auto setting = [&](const std::string& key) {
      const auto it =
          std::ranges::find(c.overrides, key, &std::pair<std::string, std::string>::first);
      return it == c.overrides.end() ? std::string() : csv_field(it->second);
    };
    const std::string level(1, c.level);
    text += fmt::format(
        "{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}\r\n",
        csv_field(c.id), to_string(c.stratum), csv_field(level), csv_field(c.scenario),
        setting("seed"), setting("tpu.cores"), setting("tpu.precision"), csv_field(c.kind),
        csv_field(c.fault), csv_field(c.op), csv_field(c.cause),
        c.magnitude ? fmt::format("{}", *c.magnitude) : "", to_string(s.kind), r.truth.distance,
        r.truth.meaning, r.truth.matters, r.error.empty() ? to_string(r.verdict) : "error",
        r.error.empty() ? to_string(r.effect) : "", yes(s.right), yes(s.flagged), yes(s.op),
        yes(s.step), yes(s.core), yes(s.cause), r.executions, r.run_lengths, csv_field(r.headline),
        csv_field(r.error));
  }
  return text;
}

}  // namespace twinrun::drill
