// Tests the CSV of every table with a parser of RFC 4180 that shares no code with the writer.
#include "reports/csv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "tests/reports/examples.h"

namespace twinrun {
namespace {

using Cells = std::vector<std::vector<std::string>>;

Cells parse(const std::string& text) {
  Cells rows = {{""}};
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    std::string& cell = rows.back().back();
    const char c = text[i];
    if (quoted) {
      if (c != '"') {
        cell += c;
      } else if (i + 1 < text.size() && text[i + 1] == '"') {
        cell += text[++i];
      } else {
        quoted = false;
      }
    } else if (c == '"') {
      EXPECT_EQ(cell, "") << "a quote inside of a bare cell";
      quoted = true;
    } else if (c == ',') {
      rows.back().emplace_back();
    } else if (c == '\r' && i + 1 < text.size() && text[i + 1] == '\n') {
      ++i;
      rows.push_back({""});
    } else {
      EXPECT_TRUE(c != '\n' && c != '\r') << "a bare line end at " << i;
      cell += c;
    }
  }
  EXPECT_FALSE(quoted);
  EXPECT_EQ(rows.back(), std::vector<std::string>{""}) << "the last line ends";
  rows.pop_back();
  return rows;
}

Cells table(const Report& report, const std::string& name) {
  for (const ReportFile& file : to_csv(report)) {
    if (file.name == name) return parse(file.content);
  }
  ADD_FAILURE() << name;
  return {};
}

std::string value(const Cells& rows, size_t row, const std::string& title) {
  const auto at = std::ranges::find(rows[0], title);
  return at == rows[0].end() ? "no column" : rows[row][static_cast<size_t>(at - rows[0].begin())];
}

TEST(Csv, RowsHaveAsManyCellsAsTitles) {
  for (const Report& report : {examples::noise(), examples::sharding(), examples::engine_bug(),
                               examples::inconclusive(), examples::hostile()}) {
    for (const ReportFile& file : to_csv(report)) {
      const Cells rows = parse(file.content);
      ASSERT_GE(rows.size(), 2U) << file.name;
      for (const auto& row : rows) EXPECT_EQ(row.size(), rows[0].size()) << file.name;
    }
  }
}

TEST(Csv, EveryTableOfADiagnosis) {
  const Report r = examples::engine_bug();
  const Cells runs = table(r, "runs.csv");
  ASSERT_EQ(runs.size(), 7U);
  EXPECT_EQ(runs[0][0], "name");
  EXPECT_EQ(value(runs, 6, "name"), "T");
  EXPECT_EQ(value(runs, 6, "eval_loss"), "0.2624");
  EXPECT_EQ(value(runs, 1, "settings"), "batch 256");
  const Cells losses = table(r, "losses.csv");
  EXPECT_EQ(losses[0], (std::vector<std::string>{"step", "R", "R2", "R1", "E1", "S", "T"}));
  ASSERT_EQ(losses.size(), 41U);
  EXPECT_EQ(losses[40][0], "39");
  EXPECT_EQ(std::stof(losses[40][6]), r.runs[5].losses[39]);
  const Cells findings = table(r, "findings.csv");
  EXPECT_EQ(value(findings, 1, "class"), "ENGINE_BUG");
  EXPECT_EQ(value(findings, 1, "core"), "5");
  EXPECT_EQ(value(findings, 3, "core"), "") << "of all cores";
  EXPECT_NE(value(findings, 1, "evidence").find("; flagged on"), std::string::npos);
  const Cells rows = table(r, "probe_rows.csv");
  EXPECT_EQ(rows[0][0], "pair");
  EXPECT_EQ(value(rows, 1, "op"), "conv1/kernel.grad");
  EXPECT_EQ(value(rows, 1, "worst_ratio"), "4130");
  EXPECT_EQ(value(rows, 3, "operand_residual"), "") << "not measured";
  EXPECT_EQ(table(r, "probes.csv").size(), 2U);
  EXPECT_EQ(table(r, "switches.csv").size(), 3U);
  EXPECT_EQ(table(r, "controls.csv").size(), 4U);
  EXPECT_EQ(value(table(r, "trajectories.csv"), 1, "outcome"), "undecided");
  EXPECT_EQ(table(examples::noise(), "differences.csv").size(), 6U);
  EXPECT_TRUE(to_csv(Report{}).empty());
}

TEST(Csv, NumbersReadBackAndFormulasAreText) {
  Report r = examples::noise();
  r.runs[0].eval_loss = 0.1 + 0.2;
  r.runs[1].losses[0] = std::numeric_limits<float>::quiet_NaN();
  r.runs[0].engine = "=HYPERLINK(\"x\",\"y\")";
  r.runs[1].engine = "@a";
  r.runs[2].engine = "-1+1";
  r.runs[3].engine = "a-1";
  const Cells runs = table(r, "runs.csv");
  EXPECT_EQ(std::stod(value(runs, 1, "eval_loss")), 0.1 + 0.2);
  EXPECT_EQ(value(runs, 1, "engine"), "'=HYPERLINK(\"x\",\"y\")");
  EXPECT_EQ(value(runs, 2, "engine"), "'@a");
  EXPECT_EQ(value(runs, 3, "engine"), "'-1+1");
  EXPECT_EQ(value(runs, 4, "engine"), "a-1");
  EXPECT_EQ(table(r, "losses.csv")[1][2], "nan");
}

}  // namespace
}  // namespace twinrun
