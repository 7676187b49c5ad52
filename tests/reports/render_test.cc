// Tests the terminal and Markdown reports: against golden texts, and against rules that hold for
// any report. TWINRUN_UPDATE_GOLDEN=1 rewrites tests/golden/reports/; read the diff before you
// commit it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "reports/tables.h"
#include "reports/text.h"
#include "reports/utf8.h"
#include "tests/reports/examples.h"

namespace twinrun {
namespace {

struct Example {
  std::string name;
  Report report;
};

std::vector<Example> all_examples() {
  return {{"noise", examples::noise()},
          {"sharding", examples::sharding()},
          {"engine_bug", examples::engine_bug()},
          {"inconclusive", examples::inconclusive()},
          {"recorded", examples::recorded()}};
}

void expect_golden(const std::string& file, const std::string& actual) {
  const std::string path = std::string(TWINRUN_SOURCE_DIR) + "/tests/golden/reports/" + file;
  if (std::getenv("TWINRUN_UPDATE_GOLDEN") != nullptr) {
    std::ofstream(path, std::ios::binary) << actual;
    return;
  }
  std::ifstream in(path, std::ios::binary);
  ASSERT_TRUE(in) << path << " is missing: run with TWINRUN_UPDATE_GOLDEN=1";
  std::ostringstream expected;
  expected << in.rdbuf();
  EXPECT_EQ(actual, expected.str()) << path;
}

int code_points(std::string_view line) {
  int n = 0;
  for (; !line.empty(); ++n) text::take_unit(line);
  return n;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

TEST(Render, ManyCoresAreInEveryPage) {
  Report r = examples::sharding();
  for (const auto& page : {to_terminal(r, {}), to_markdown(r), to_html(r)})
    EXPECT_EQ(page.find("Many cores"), std::string::npos) << "few cores have no such chapter";
  r.many_cores.rows = {{1, false, 512, 1.0, 512, 0.04, 0, 0, 0},
                       {512, true, 1, 1.0 / 512, 1, 1, 511, 511 * 0x1p-24, 0x1p-20}};
  r.many_cores.sentences = {"Reduced gradients are smaller."};
  for (const auto& page : {to_terminal(r, {}), to_markdown(r), to_html(r)}) {
    for (const char* shown : {"Many cores", "1/512", "2^-15.0", "Reduced gradients are smaller."})
      EXPECT_NE(page.find(shown), std::string::npos) << shown << "\n" << page;
  }
}

std::vector<Report> reports_of_all_kinds() {
  std::vector<Report> out = {Report{}, examples::hostile()};
  for (const Example& example : all_examples()) out.push_back(example.report);
  return out;
}

// A report larger than any diagnosis gives: the size limits must hold, and in reasonable time.
Report absurd() {
  Report r = examples::hostile();
  const auto grow = [](auto& list, size_t n) {
    const auto one = list.front();
    list.assign(n, one);
  };
  const std::string big(1 << 20, '`');
  r.headline = r.command = r.program_excerpt = r.scenario_toml = r.subject = big + "|<";
  grow(r.findings, 500);
  grow(r.runs, 200);
  grow(r.controls, 500);
  grow(r.probes, 50);
  for (EngineProbe& p : r.probes) grow(p.rows, 300);
  grow(r.ablations, 500);
  grow(r.trajectories, 500);
  r.ruled_out.assign(1000, examples::poison());
  r.next_steps = r.notes = r.ruled_out;
  r.checklist.assign(1000, {examples::poison(), false, examples::poison(), examples::poison()});
  for (int i = 0; i < 500; ++i) r.environment[std::to_string(i)] = examples::poison();
  return r;
}

TEST(Golden, Terminal) {
  for (const Example& example : all_examples()) {
    expect_golden(example.name + ".txt", to_terminal(example.report, {.width = 80}));
    // What a diagnosis prints without -v.
    const std::string answer = to_terminal(example.report, {.width = 80, .whole = false});
    expect_golden(example.name + ".answer.txt", answer);
    EXPECT_LE(std::ranges::count(answer, '\n'), 32) << answer;
  }
}

TEST(Golden, TerminalNarrowAscii) {
  expect_golden("engine_bug.ascii60.txt",
                to_terminal(examples::engine_bug(), {.width = 60, .unicode = false}));
}

TEST(Golden, Markdown) {
  for (const Example& example : all_examples()) {
    expect_golden(example.name + ".md", to_markdown(example.report));
  }
}

TEST(Tables, EveryRowHasACellForEachColumn) {
  for (const Report& r : reports_of_all_kinds()) {
    for (const tables::Section& s :
         {tables::runs(r), tables::drift(r), tables::trajectories(r), tables::ensembles(r),
          tables::ablations(r), tables::probes(r, 4), tables::controls(r), tables::environment(r),
          tables::other_findings(r), tables::answers(r), tables::open_questions(r)}) {
      for (const tables::Table& t : s.tables) {
        for (const auto& row : t.rows) EXPECT_EQ(row.cells.size(), t.columns.size()) << s.title;
      }
    }
  }
}

// A control with the bits of its run has a row of its own on pages only.
TEST(Tables, RowsAndColumnsAreChosenByFormat) {
  const tables::Table runs = tables::runs(examples::noise()).tables.front();
  const auto raw = [](const tables::Cell& cell) { return cell.raw; };
  const tables::Grid narrow = grid_of(runs, tables::kTerminal, 2, raw);
  EXPECT_EQ(narrow.rows.size(), 2U);
  EXPECT_EQ(narrow.left_out, 3U);
  EXPECT_EQ(narrow.rows.front().front(), "R = R2");
  const tables::Grid page = grid_of(runs, tables::kMarkdown, 16, raw);
  EXPECT_EQ(page.rows.size(), 6U);
  EXPECT_EQ(page.rows.front().front(), "R");
  EXPECT_GT(page.columns.size(), narrow.columns.size());
}

TEST(Terminal, NoLineIsWiderThanTheTerminal) {
  for (const Report& report : reports_of_all_kinds()) {
    for (int width : {40, 60, 80, 120}) {
      for (bool color : {false, true}) {
        const std::string text = to_terminal(report, {.width = width, .color = color});
        for (const std::string& line : lines_of(text)) {
          if (!color) {
            EXPECT_LE(code_points(line), width) << line;
          }
          EXPECT_LE(text::display_width(line), width) << line;
        }
      }
    }
  }
}

// The table of runs shows a sparkline of the loss for every run, all on one scale, wherever the
// terminal is wide enough.
TEST(Terminal, EveryRunHasACurve) {
  for (const int width : {60, 80, 120}) {
    const std::string text = to_terminal(examples::engine_bug(), {.width = width});
    const std::string ascii =
        to_terminal(examples::engine_bug(), {.width = width, .unicode = false});
    for (const char* run : {"  R = R2 ", "  R1 ", "  E1 ", "  S ", "  T "}) {
      const auto row_of = [&](const std::string& of) {
        for (const std::string& line : lines_of(of.substr(of.find("\nRuns")))) {
          if (line.starts_with(run)) return line;
        }
        return std::string();
      };
      EXPECT_TRUE(row_of(text).find("▂▂") != std::string::npos) << width << row_of(text);
      EXPECT_TRUE(row_of(ascii).find("..") != std::string::npos) << width << row_of(ascii);
    }
  }
  const std::string narrow = to_terminal(examples::engine_bug(), {.width = 40});
  EXPECT_EQ(narrow.find("▂▂"), std::string::npos) << "no room: numbers come first";
  const std::string dead = to_terminal(examples::inconclusive(), {.width = 80});
  EXPECT_NE(dead.find("▂! "), std::string::npos) << "what is not finite shows";
}

TEST(Terminal, NoEscapesWithoutColorAndNoForeignOnesWithIt) {
  for (const Report& report : reports_of_all_kinds()) {
    const std::string plain = to_terminal(report, {.width = 80});
    for (char c : plain) EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
    std::string colored = to_terminal(report, {.width = 80, .color = true});
    EXPECT_NE(colored.find("\x1b["), std::string::npos);
    for (const char* ours : {"\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m",
                             "\x1b[1;30;42m", "\x1b[1;30;43m", "\x1b[1;37;41m"}) {
      for (size_t at; (at = colored.find(ours)) != std::string::npos;) {
        colored.erase(at, std::string_view(ours).size());
      }
    }
    EXPECT_EQ(colored.find('\x1b'), std::string::npos);
  }
}

TEST(Terminal, AsciiMeansAscii) {
  for (const Report& report : reports_of_all_kinds()) {
    for (char c : to_terminal(report, {.width = 80, .unicode = false})) {
      EXPECT_TRUE(c == '\n' || (c >= 0x20 && c < 0x7F));
    }
  }
}

TEST(Terminal, VerdictIsTheFirstWordAndOnTheLastLine) {
  for (const Example& example : all_examples()) {
    const auto lines = lines_of(to_terminal(example.report, {.width = 80}));
    const std::string name(to_string(example.report.verdict));
    EXPECT_TRUE(lines.front().starts_with(name)) << lines.front();
    EXPECT_TRUE(lines.back().starts_with(name)) << lines.back();
  }
}

TEST(Terminal, AbsurdReportIsCutShort) {
  const std::string text = to_terminal(absurd(), {.width = 80});
  EXPECT_NE(text.find("more in report.json"), std::string::npos);
  EXPECT_LT(lines_of(text).size(), 2000U);
}

TEST(Markdown, AlwaysFitsIntoAComment) {
  for (const Report& report : reports_of_all_kinds()) EXPECT_LT(to_markdown(report).size(), 60000U);
  const std::string text = to_markdown(absurd());
  EXPECT_LT(text.size(), 60000U);
  EXPECT_NE(text.find("more rows in report.json"), std::string::npos);
  EXPECT_NE(text.find("## How to reproduce"), std::string::npos);
}

// Whichever lists grow, one of them or all, the size limit holds and the omitted rows are counted.
TEST(Markdown, StaysBelowTheLimitHoweverMuchThereIs) {
  using Grow = void (*)(Report&, size_t);
  constexpr Grow kAll[] = {
      [](Report& r, size_t n) { r.findings.assign(n, r.findings.front()); },
      [](Report& r, size_t n) { r.runs.assign(n, r.runs.front()); },
      [](Report& r, size_t n) { r.controls.assign(n, r.controls.front()); },
      [](Report& r, size_t n) { r.probes.assign(n, r.probes.front()); },
      [](Report& r, size_t n) { r.probes.front().rows.assign(n, r.probes.front().rows.front()); },
      [](Report& r, size_t n) { r.ablations.assign(n, r.ablations.front()); },
      [](Report& r, size_t n) { r.trajectories.assign(n, r.trajectories.front()); },
      [](Report& r, size_t n) {
        r.ensembles.assign(n, {examples::poison(), examples::poison(), 20, 12, 0.25, 0.125, 0.5,
                               0.0769, EnsembleOutcome::kOutside});
      },
      [](Report& r, size_t n) { r.notes.assign(n, examples::poison()); },
      [](Report& r, size_t n) { r.findings.front().evidence.assign(n, examples::poison()); },
      [](Report& r, size_t n) { r.runs.front().losses.assign(n, 1.5f); },
  };
  for (const size_t n : {10, 3000}) {
    Report all = examples::hostile();
    for (const Grow grow : kAll) {
      Report one = examples::hostile();
      grow(one, n);
      grow(all, n);
      const std::string text = to_markdown(one);
      EXPECT_LT(text.size(), 60000U);
      EXPECT_NE(text.find("## Attachments"), std::string::npos) << "it ends with its last section";
    }
    const std::string text = to_markdown(all);
    EXPECT_LT(text.size(), 60000U);
    EXPECT_NE(text.find("more rows in report.json"), std::string::npos);
  }
}

TEST(Markdown, SectionsStandInTheOrderOfAFiling) {
  Report r = examples::engine_bug();
  r.verdict = VerdictClass::kInconclusive;  // an engine bug would hide the section on interaction
  r.trajectories = examples::noise().trajectories;
  r.unexplained = 0.5;
  r.notes = {"a note"};
  const std::string text = to_markdown(r);
  EXPECT_TRUE(text.starts_with("**INCONCLUSIVE: "));
  size_t before = 0;
  for (const char* title :
       {"## What happened", "## Ops around the finding", "## Command", "## First diverging",
        "## Number against bound", "## The four-corner experiment", "## Controls",
        "## Each op against", "## Each sharding cause", "## Does it matter", "## Interaction",
        "## Ruled out", "## What to run next", "## Notes", "## Environment", "## Attachments",
        "## How to reproduce", "## Words"}) {
    const size_t at = text.find(title);
    ASSERT_NE(at, std::string::npos) << title;
    EXPECT_GT(at, before) << title;
    before = at;
  }
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

// Joins all lines into one, because the terminal report wraps sentences.
std::string unwrapped(const std::string& text) {
  std::string out;
  for (const std::string& line : lines_of(text)) {
    const size_t start = line.find_first_not_of(' ');
    if (start != std::string::npos) out += (out.empty() ? "" : " ") + line.substr(start);
  }
  return out;
}

TEST(Sentences, TheHeadSaysWhatWasInjectedAndWhatAFailedControlMeans) {
  for (const bool terminal : {true, false}) {
    const auto head = [&](const Report& r) {
      const std::string text = terminal ? unwrapped(to_terminal(r, {.width = 80})) : to_markdown(r);
      return text.substr(0, text.find("confidence"));
    };
    EXPECT_TRUE(has(head(examples::engine_bug()), "Injected on purpose: drop_k_tail@conv1/kernel"));
    const std::string failed = head(examples::inconclusive());
    EXPECT_TRUE(has(failed, "A control failed: R = R2. Nothing below is certain until it passes."))
        << failed;
    EXPECT_TRUE(has(failed, "The verdict does not depend on this.")) << failed;
    EXPECT_FALSE(has(failed, "A control failed: T = T'")) << failed;
  }
}

// If one fault affects several ops, the first finding is shown in full with its command, the others
// as a row each. The terminal shows at most six lines of evidence.
TEST(Sentences, OpsOfOneFaultAreToldOnce) {
  Report r = examples::engine_bug();
  const std::string text = to_terminal(r, {.width = 120});
  EXPECT_TRUE(has(text,
                  "        2  conv2/kernel.grad     3     5  error 0.0107; allowed 3.10e-06 (3450 "
                  "times)  as finding 1"))
      << text;
  EXPECT_FALSE(has(text, "2. ENGINE_BUG")) << text;
  EXPECT_TRUE(has(text, "3. NOISE")) << text;
  r.findings[0].evidence = {"e1", "e2", "e3", "e4", "e5", "e6", "e7", "e8"};
  const std::string cut = to_terminal(r, {.width = 120});
  EXPECT_TRUE(has(cut, "e6\n") && has(cut, "2 more in report.md")) << cut;
  EXPECT_FALSE(has(cut, "e7")) << cut;
  EXPECT_TRUE(has(to_markdown(r), "- e8\n"));
}

TEST(Sentences, TheEffectAndItsIntervalAreShown) {
  Report noise = examples::noise();
  noise.effect = Effect::kNoneDetected;
  noise.effect_text = "held-out loss moves by nothing that was seen";
  for (const std::string& text :
       {to_terminal(noise, {.width = 100}), to_markdown(noise), to_html(noise)}) {
    for (const char* part : {"none detected: held-out loss moves by nothing that was seen",
                             "hold with 95%", "[-1.20e-05, +2.40e-05]"})
      EXPECT_TRUE(has(text, part)) << part << "\n" << text;
  }
  const std::string one = to_terminal(examples::engine_bug(), {.width = 80});
  EXPECT_TRUE(has(one, "difference of one seed") && has(one, "not tested")) << one;
  EXPECT_FALSE(has(one, "+0.0313 to +0.0313")) << one;
}

TEST(Sentences, TheReportNamesOnlyWhatExists) {
  for (const Example& example : all_examples()) {
    const std::string text = to_markdown(example.report);
    EXPECT_FALSE(has(text, "twinrun bundle")) << example.name;
    if (example.report.kind != "scenario") continue;
    EXPECT_TRUE(has(text, "`zip -r case.zip twinrun-results/")) << example.name;
    EXPECT_EQ(lines_of(text.substr(text.find("## Words"))).size(), 7U) << "a title and five lines";
    EXPECT_FALSE(has(text, "only 0 is allowed")) << example.name;
  }
  Report r = examples::noise();
  r.findings[0].number = r.findings[0].bound = 0;
  EXPECT_FALSE(has(to_terminal(r, {.width = 80}), "     number")) << "a row without a number";
}

// Counts the unescaped pipes of a GFM table row: each ends a cell, even inside a code span.
size_t cells_of(const std::string& row) {
  size_t n = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] == '|' && (i == 0 || row[i - 1] != '\\')) ++n;
  }
  return n;
}

TEST(Markdown, TablesHoldAgainstHostileCells) {
  for (const Report& report : {examples::hostile(), absurd()}) {
    size_t width = 0;
    std::string fence;
    int open = 0;
    for (const std::string& line : lines_of(to_markdown(report))) {
      const size_t ticks = std::min(line.find_first_not_of('`'), line.size());
      if (fence.empty() && ticks >= 3 && line.find('`', ticks) == std::string::npos) {
        fence = line.substr(0, ticks);
        continue;
      }
      if (!fence.empty()) {
        if (line == fence) fence.clear();
        continue;
      }
      if (line.starts_with("<details>")) ++open;
      if (line == "</details>") --open;
      width = line.starts_with("|") ? (width != 0 ? width : cells_of(line)) : 0;
      if (width != 0) {
        EXPECT_EQ(cells_of(line), width) << line;
      }
      for (char c : line) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
    }
    EXPECT_EQ(fence, "") << "a fence stays open";
    EXPECT_EQ(open, 0);
  }
}

TEST(Markdown, IsValidUtf8) {
  const std::string text = to_markdown(absurd());
  std::string again;
  for (std::string_view rest = text; !rest.empty();) text::append(again, text::take(rest));
  EXPECT_EQ(again, text);
}

}  // namespace
}  // namespace twinrun
