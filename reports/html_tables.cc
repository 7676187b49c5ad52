// Makes the tables of report.html.
#include <fmt/format.h>

#include <algorithm>

#include "reports/html_parts.h"
#include "reports/html_text.h"
#include "reports/svg.h"
#include "reports/tables.h"
#include "reports/text.h"

namespace twinrun::html {
namespace {

std::string badge(VerdictClass verdict) {
  return fmt::format("<span class=\"badge v-{0}\">{0}</span>", to_string(verdict));
}

std::string cell(const tables::Cell& c) {
  if (c.bar != nullptr) return op_bar(*c.bar);
  const auto most = static_cast<int>(c.most);
  const std::string out = c.look == tables::Look::kCode    ? code(c.raw, most)
                          : c.look == tables::Look::kProse ? prose(c.raw, most)
                                                           : text(c.raw, most);
  if (out.empty() || c.mark == tables::Mark::kNone) return out;
  const std::string marked = std::string(sign_of(c.mark)) + out;
  return c.mark == tables::Mark::kPassed   ? marked
         : c.mark == tables::Mark::kStrong ? fmt::format("<b>{}</b>", marked)
                                           : fmt::format("<b class=\"bad\">{}</b>", marked);
}

std::string facts(const Finding& f) {
  std::string out = "<dl>\n";
  const auto line = [&](std::string_view key, const std::string& html) {
    if (!html.empty()) out += fmt::format("<dt>{}</dt><dd>{}</dd>\n", key, html);
  };
  for (const tables::Fact& fact : tables::facts_of(f)) line(fact.label, cell(fact.cell));
  std::vector<std::string> evidence = f.evidence;
  if (const std::string_view rests_on = text::meaning(f.level); !rests_on.empty())
    evidence.insert(evidence.begin(), std::string(rests_on));
  line("evidence", bullets(evidence));
  line("reproduce", f.reproduce.empty() ? "" : block(f.reproduce, 4000));
  return out + "</dl>\n";
}

}  // namespace

std::string tables_of(const tables::Section& s) {
  std::string out = paragraph(s.before);
  for (const tables::Table& t : s.tables) {
    const tables::Grid grid = grid_of(t, tables::kHtml, t.limits.html, cell);
    const std::string caption = t.caption.empty() ? s.title : tables::capitalized(t.caption);
    Table first(caption, grid.columns), others(caption, grid.columns, grid.rows.size());
    for (size_t i = 0; i < grid.rows.size(); ++i)
      (i < t.limits.open_html ? first : others).add(grid.rows[i]);
    out += paragraph(t.before) + first.str();
    if (!others.empty())
      out +=
          folded(fmt::format("{} more rows", grid.rows.size() - t.limits.open_html), others.str());
    if (grid.left_out > 0) out += more(grid.left_out);
  }
  return out + paragraph(s.after);
}

std::string findings(const Report& r) {
  constexpr size_t kMax = 24;
  std::string out;
  const std::vector<text::Telling> tellings = text::tellings_of(r.findings);
  size_t shown = 0;
  for (size_t i = 0; i < r.findings.size(); ++i) {
    const Finding& f = r.findings[i];
    if (!tellings[i].in_full || ++shown > kMax) continue;
    out +=
        fmt::format("<article id=\"finding-{0}\">\n<h3>{0}. {1} {2}{3}</h3>\n{4}{5}{6}</article>\n",
                    i + 1, badge(f.verdict), text(f.cause, 160),
                    f.share ? text(fmt::format(", {} of the drift", text::share(*f.share))) : "",
                    paragraph(f.sentence), tensor_figure(f), facts(f));
  }
  return out + (shown > kMax ? more(shown - kMax) : "") + tables_of(tables::other_findings(r));
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
               {"outcome"}});
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

std::string commands(const Report& r) {
  std::string out;
  for (const auto& [what, command] : text::commands_of(r))
    out += paragraph(what) + block(command, 4000);
  if (!r.scenario_toml.empty()) out += folded("The scenario, as resolved", block(r.scenario_toml));
  return out;
}

}  // namespace twinrun::html
