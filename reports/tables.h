// The tables of a report, each described once: title, columns, cells and notes. The terminal, the
// Markdown and the HTML report render the same description, each with its own layout. A new format
// takes the columns and rows of the one that it resembles.
//
//   const tables::Section s = tables::trajectories(report);
//   for (const tables::Table& t : s.tables)
//     grid_of(t, tables::kMarkdown, 16, [](const tables::Cell& c) { return c.raw; }).rows;
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/report.h"
#include "reports/text.h"

namespace twinrun::tables {

// Sets of formats. kWide is a terminal with room for columns that repeat what stands elsewhere.
enum Formats : uint8_t {
  kTerminal = 1,
  kWide = 2,
  kMarkdown = 4,
  kHtml = 8,
  kPages = kMarkdown | kHtml,
  kAll = kTerminal | kPages,
};

enum class Look : uint8_t {
  kPlain,  // our own words and numbers: Markdown does not escape them
  kWords,  // from outside
  kProse,  // from outside; HTML explains names of runs in it
  kCode,   // a name
};
enum class Mark : uint8_t { kNone, kPassed, kFailed, kBad, kStrong };
std::string_view sign_of(Mark mark);  // "✓ " for kPassed, "✗ " for kFailed

struct Cell {
  Cell(std::string words) : raw(std::move(words)) {}  // NOLINT(google-explicit-constructor)
  Cell(const char* words) : raw(words) {}             // NOLINT(google-explicit-constructor)
  Cell(Look l, std::string_view words, size_t longest);

  std::string raw;
  Look look = Look::kPlain;
  size_t most = 120;  // length at which the cell is cut
  Mark mark = Mark::kNone;
  // Pictures, for the formats that can draw them beside or instead of words.
  const std::vector<float>* curve = nullptr;  // a sparkline in the terminal
  const ProbeRow* bar = nullptr;              // a bar in HTML
};

struct Column {
  text::Column layout;
  int in = kAll;
};
inline Column left(std::string title, int in = kAll, int drop = 0) {
  return {{std::move(title), false, false, drop}, in};
}
inline Column right(std::string title, int in = kAll, int drop = 0) {
  return {{std::move(title), true, false, drop}, in};
}
inline Column wraps(std::string title, int in = kAll, int drop = 0) {
  return {{std::move(title), false, true, drop}, in};
}

// How many rows a format shows; the others are counted.
struct Limits {
  size_t terminal = 8, markdown = 16, html = 100;
  // Longer tables are folded on a page.
  size_t open_markdown = SIZE_MAX, open_html = SIZE_MAX;
};

struct Table {
  void add(std::vector<Cell> cells, int formats = kAll) {
    rows.push_back({std::move(cells), formats});
  }

  std::string caption = {};  // without capital and full stop; "": the section's title says it
  std::string before = {};   // a paragraph; not cleaned
  std::vector<Column> columns = {};
  struct Row {
    std::vector<Cell> cells;  // one for each column
    int in = kAll;
  };
  std::vector<Row> rows = {};
  Limits limits = {};
};

struct Section {
  std::string title;
  std::vector<Table> tables = {};
  std::string before = {}, after = {};  // paragraphs in our own words
};

// Empty (no tables) where the report has nothing to show.
Section answers(const Report& report);  // the five questions, and what came out
Section open_questions(const Report& report);
std::vector<Section> details(const Report& report);  // titles are not cleaned; one table each
Section runs(const Report& report);
Section drift(const Report& report);
Section trajectories(const Report& report);
Section ensembles(const Report& report);
Section ablations(const Report& report);
Section probes(const Report& report, size_t most);  // of the first `most` engines
Section many_cores(const Report& report);
Section controls(const Report& report);  // failed ones first
Section checklist(const Report& report);
Section environment(const Report& report);
// The findings that are not shown in full.
Section other_findings(const Report& report);

// Tables of the Markdown report only.
// Number, bound, its source and the bits of each finding.
Table bounds(const Report& report);
// Losses with nine digits, which identify a binary32: every step of a short run, `most_steps` of a
// longer one, for at most `most_curves` runs. Names of runs are the titles, not cleaned.
Table losses(const Report& report, size_t most_curves, size_t most_steps);

// What is known of a finding, label by label; facts without content are left out.
struct Fact {
  std::string_view label;  // "where"
  Cell cell;
};
std::vector<Fact> facts_of(const Finding& finding);

// What one format shows of a table. Columns without any content are left out by the layouts.
struct Grid {
  std::vector<text::Column> columns;
  std::vector<std::vector<std::string>> rows;
  size_t left_out = 0;  // rows beyond the limit
};
Grid grid_of(const Table& table, int formats, size_t most,
             const std::function<std::string(const Cell&)>& write);
std::string capitalized(std::string words);

}  // namespace twinrun::tables
