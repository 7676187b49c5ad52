// Makes the part of report.html about the experiment: its runs, how far they are apart, and which
// have equal bits.
#include <fmt/format.h>

#include <algorithm>

#include "reports/drift.h"
#include "reports/html_parts.h"
#include "reports/html_text.h"
#include "reports/run_names.h"
#include "reports/text.h"

namespace twinrun::html {
namespace {

std::string box(const Report& r, std::string_view name) {
  const RunSummary* run = text::find_run(r, name);
  if (run == nullptr) return "";
  std::string out = fmt::format("<div class=\"corner at-{0}\"><b>{0}</b> {1}<br>{2}, {3}<br>", name,
                                text(run->meaning, 80), text(text::engine_name(run->engine), 60),
                                text(run->settings, 120));
  if (run->evaluated) {
    out += fmt::format("held-out loss <b>{}</b>", text::number(run->eval_loss, 5));
    if (run->scored) out += fmt::format(", accuracy {}", text::percent(run->eval_accuracy));
  } else {
    out += fmt::format("last loss <b>{}</b>", text::number(run->train_loss, 5));
  }
  if (!run->ended.completed()) out += "<br><b>" + text(to_string(run->ended), 120) + "</b>";
  return out + "</div>\n";
}

// What the difference of two runs isolates, and its size.
std::string between(const std::vector<text::DriftRow>& drift, std::string_view pair,
                    std::string_view place) {
  const auto row = std::ranges::find(drift, pair, &text::DriftRow::pair);
  if (row == drift.end()) return "";
  return fmt::format("<div class=\"between at-{}\"><b>{}</b> {}<br>{}</div>\n", place, prose(pair),
                     row->isolates,
                     row->first_step ? fmt::format("losses differ by up to {}, from step {} on",
                                                   text::number(row->largest), *row->first_step)
                                     : std::string("losses are bit-identical"));
}

}  // namespace

std::string runs_named(const std::string& html) {
  std::string out;
  for (const text::RunName& run : text::run_names()) {
    if (html.find(fmt::format(">{}</abbr>", text(run.name))) != std::string::npos)
      out += fmt::format("<li><b>{}</b> {}</li>\n", text(run.name), text(run.words));
  }
  return out.empty() ? out
                     : "<ul class=\"names\" aria-label=\"What the runs are\">\n" + out + "</ul>\n";
}

std::string corners(const Report& r) {
  const std::vector<text::DriftRow> drift = text::drift_of(r);
  std::string grid;
  for (const std::string_view name : {"R", "S", "T", "R1", "E1"}) grid += box(r, name);
  grid += between(drift, "S - R", "SR") + between(drift, "T - S", "TS") +
          between(drift, "T - R", "TR") + between(drift, "E1 - R1", "ER");
  std::string out;
  if (!grid.empty()) out = fmt::format("<div class=\"corners\">\n{}</div>\n", grid);
  return out + tables_of(tables::runs(r));
}

std::string digests(const Report& r) {
  Table divergence("Where states diverge", {{"pair"}, {"steps compared", true}, {"bits differ"}});
  for (const StateDivergence& p : r.state_divergences) {
    divergence.add(
        {code(p.pair, 40), text::count(p.steps),
         p.first_step ? fmt::format("after step {}", *p.first_step) : "never: the same bits"});
  }
  size_t cores = 0;
  for (const RunSummary& run : r.runs) cores = std::max(cores, run.core_digests.size());
  constexpr size_t kMax = 64;
  std::vector<Column> columns = {{"run"}};
  for (size_t c = 0; c < std::min(cores, kMax); ++c) columns.push_back({fmt::format("core {}", c)});
  Table per_core("State of each core after the last step: first 8 digits of its digest", columns);
  bool part = false;
  for (const RunSummary& run : r.runs) {
    if (run.core_digests.empty()) continue;
    std::vector<std::string> row = {code(run.name, 40)};
    for (size_t c = 0; c < std::min(run.core_digests.size(), kMax); ++c) {
      const bool other = run.core_digests[c] != run.core_digests.front();
      part = part || other;
      row.push_back(code(text::digest8(run.core_digests[c])) + (other ? " ≠" : ""));
    }
    per_core.add(std::move(row));
  }
  std::string out = divergence.str() + per_core.str();
  if (part)
    out +=
        paragraph("≠: differs from core 0. Batch norm's statistics may differ from core to core.");
  return out;
}

}  // namespace twinrun::html
