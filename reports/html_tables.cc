// Makes the tables of report.html.
#include <fmt/format.h>

#include <algorithm>

#include "reports/drift.h"
#include "reports/html_parts.h"
#include "reports/html_text.h"
#include "reports/svg.h"
#include "reports/text.h"

namespace twinrun::html {
namespace {

std::string badge(VerdictClass verdict) {
  return fmt::format("<span class=\"badge v-{0}\">{0}</span>", to_string(verdict));
}

std::string facts(const Finding& f) {
  std::string out = "<dl>\n";
  const auto line = [&](std::string_view key, const std::string& html) {
    if (!html.empty()) out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", key, html);
  };
  line("where", text(text::place_of(f)));
  line("op", f.op.empty()
                 ? ""
                 : code(f.op) + (f.op_kind.empty() ? "" : " (" + text(f.op_kind, 120) + ")"));
  line("elements", prose(f.elements));
  line("looks like", text(f.fingerprint));
  line("bits", code(f.hex, 400));
  line("number", prose(text::number_of(f)));
  line("bound", prose(f.bound_source));
  std::vector<std::string> evidence = f.evidence;
  if (const std::string_view rests_on = text::meaning(f.level); !rests_on.empty())
    evidence.insert(evidence.begin(), fmt::format("level {}: {}", f.level, rests_on));
  line("evidence", bullets(evidence));
  line("reproduce", f.reproduce.empty() ? "" : block(f.reproduce, 4000));
  return out + "</dl>\n";
}

}  // namespace

std::string findings(const Report& r) {
  constexpr size_t kMax = 24;
  std::string out;
  const std::vector<text::Telling> tellings = text::tellings_of(r.findings);
  Table others("Also wrong, by the same fault or another", {{"finding", true},
                                                            {"op"},
                                                            {"step", true},
                                                            {"core", true},
                                                            {"error, and what is allowed"},
                                                            {"looks like"}});
  size_t shown = 0, left = 0;
  for (size_t i = 0; i < r.findings.size(); ++i) {
    const Finding& f = r.findings[i];
    if (!tellings[i].in_full) {
      others.add({fmt::format("{}", i + 1), code(f.op), f.step ? text::count(*f.step) : "",
                  f.core ? fmt::format("{}", *f.core) : "", text(text::number_of(f), 200),
                  tellings[i].as > 0 ? fmt::format("as finding {}", tellings[i].as)
                                     : text(f.fingerprint, 200)});
    } else if (++shown > kMax) {
      ++left;
    } else {
      out += fmt::format(
          "<article id=\"finding-{0}\">\n<h3>{0}. {1} {2}{3}</h3>\n{4}{5}{6}</article>\n", i + 1,
          badge(f.verdict), text(f.cause, 160),
          f.share ? text(fmt::format(", {} of the drift", text::share(*f.share))) : "",
          paragraph(f.sentence), tensor_figure(f), facts(f));
    }
  }
  return out + others.str() + (left > 0 ? more(left) : "");
}

std::string trajectories(const Report& r) {
  Table table("Held-out metrics, mean difference over paired seeds", {{"pair"},
                                                                      {"what it is"},
                                                                      {"metric"},
                                                                      {"seeds", true},
                                                                      {"mean difference", true},
                                                                      {"interval", true},
                                                                      {"would show", true},
                                                                      {"declared margin", true},
                                                                      {"effect"}});
  for (const TrajectoryRow& t : r.trajectories) {
    const std::string outcome = text(text::outcome_of(t), 40);
    table.add({code(t.pair, 40), text(t.meaning, 120), text(t.metric, 80),
               text::count(static_cast<int64_t>(t.differences.size())), text::change_of(t, t.mean),
               text::interval_of(t), t.detectable > 0 ? text::size_of(t, t.detectable) : "",
               text::margin_of(t),
               t.outcome == PairedOutcome::kHarmful ? "<b class=\"bad\">harmful</b>" : outcome});
  }
  if (table.empty()) return "";
  const std::string words = text::trials_of(r);
  return table.str() + (words.empty() ? "" : paragraph(words));
}

std::string cures(const Report& r) {
  if (r.cures.empty()) return "";
  Table table("Held-out loss and accuracy without and with the cure, means over the seeds",
              {{"run"},
               {"cure"},
               {"seeds", true},
               {"loss", true},
               {"reference", true},
               {"accuracy", true},
               {"reference", true},
               {"ends"}});
  std::string words;
  for (const CureRow& c : r.cures) {
    table.add({code(c.run, 24), code(c.cure, 200), text::count(c.seeds),
               fmt::format("{} → {}", text::number(c.loss_before, 4), text::number(c.loss, 4)),
               text::number(c.loss_reference, 4),
               fmt::format("{} → {}", text::percent(c.accuracy_before), text::percent(c.accuracy)),
               text::percent(c.accuracy_reference), std::string(to_string(c.outcome))});
    words += paragraph(text::cure_of(c));
    if (!c.command.empty()) words += block(c.command, 4000);
  }
  return table.str() + words;
}

std::string ensembles(const Report& r) {
  Table table("Median distance from simulated correct engines", {{"run"},
                                                                 {"metric"},
                                                                 {"steps", true},
                                                                 {"members", true},
                                                                 {"distance", true},
                                                                 {"theirs"},
                                                                 {"p", true},
                                                                 {"outcome"}});
  for (const EnsembleRow& f : r.ensembles) {
    table.add({code(f.run, 40), text(f.metric, 80), text::count(f.steps),
               fmt::format("{}", f.members), text::number(f.subject),
               fmt::format("{} to {}", text::number(f.low), text::number(f.high)),
               fmt::format("{:.3f}", f.p), std::string(to_string(f.outcome))});
  }
  return table.str();
}

std::string probes(const Report& r) {
  std::string out = r.probes.empty() ? "" : paragraph(text::kRecomputed);
  constexpr size_t kMax = 6, kOpen = 12;
  for (size_t i = 0; i < std::min(r.probes.size(), kMax); ++i) {
    const EngineProbe& p = r.probes[i];
    out += paragraph(text::probe_line(p) + ".");
    const std::vector<Column> columns = {{"op"},
                                         {"error / bound"},
                                         {"worst", true},
                                         {"outside", true},
                                         {"elements", true},
                                         {"without a bound", true},
                                         {"operand rounding", true},
                                         {"kind"},
                                         {"phase"}};
    const std::string caption = fmt::format(
        "Worst error against its bound, each op of {}. Bars: 0.001 to 10,000 bounds, logarithmic; "
        "the line is the bound",
        p.pair);
    Table worst(caption, columns), others(caption, columns, 400);
    for (size_t k = 0; k < p.rows.size(); ++k) {
      const ProbeRow& row = p.rows[k];
      const std::string ratio = text::worst_of(row);
      (k < kOpen ? worst : others)
          .add({code(row.op), op_bar(row),
                row.outside > 0 ? "<b class=\"bad\">" + ratio + "</b>" : ratio,
                text::count(row.outside), text::count(row.elements),
                row.untestable == 0 ? "" : text::count(row.untestable),
                row.operand_residual < 0 ? "" : text::power_of_two(row.operand_residual),
                text(row.kind, 80), text(row.phase, 40)});
    }
    out += worst.str();
    if (!others.empty())
      out += folded(fmt::format("The other {}",
                                text::plural(static_cast<int64_t>(p.rows.size() - kOpen), "op")),
                    others.str());
  }
  return r.probes.size() > kMax ? out + more(r.probes.size() - kMax) : out;
}

std::string ablations(const Report& r) {
  std::vector<const AblationRow*> sorted;
  for (const AblationRow& row : r.ablations) sorted.push_back(&row);
  std::ranges::stable_sort(sorted, std::greater<>(), &AblationRow::explains);
  Table table("Relative change of one step of the reference in binary64, from the same state",
              {{"cause"},
               {"switched"},
               {"before", true},
               {"after", true},
               {"threshold", true},
               {"explains it"},
               {"note"}});
  for (const AblationRow* s : sorted) {
    const std::string explains = text(text::effect_of(*s), 80);
    table.add({code(s->cause, 120), text(text::switched(*s), 80), text::number(s->drift_before),
               text::number(s->drift_after), text::number(s->envelope),
               s->explains ? "<b>" + explains + "</b>" : explains, text(s->note, 200)});
  }
  return table.empty() ? "" : table.str() + paragraph(text::kShares);
}

std::string controls(const Report& r) {
  Table table("What had to repeat itself", {{"control"}, {"result"}, {"detail"}});
  for (const Control& c : r.controls) {
    table.add({text(c.name, 200),
               !c.run     ? "not run"
               : c.passed ? "✓ ok"
                          : "<b class=\"bad\">✗ FAILED</b>",
               prose(c.detail, 400)});
  }
  return table.str();
}

std::string environment(const Report& r) {
  Table table("Environment", {{"key"}, {"value"}}, 60);
  for (const auto& [key, value] : r.environment) table.add({text(key, 80), text(value, 300)});
  return table.str();
}

std::string commands(const Report& r) {
  std::string out;
  for (const auto& [what, command] : text::commands_of(r))
    out += paragraph(what) + block(command, 4000);
  if (!r.scenario_toml.empty()) out += folded("The scenario, as resolved", block(r.scenario_toml));
  return out;
}

}  // namespace twinrun::html
