// Tests `twinrun report`: it renders a results folder again, and rejects input that is not one.
#include <fmt/format.h>

#include "reports/csv.h"
#include "tests/e2e/process.h"
#include "tests/reports/examples.h"

namespace twinrun::e2e {
namespace {

Outcome report(const Folder& folder, const Words& words) {
  return twinrun(folder, with({"report"}, words));
}

void write_results(const Folder& folder) {
  write_text(folder / "report.json", to_json(examples::engine_bug()));
}

TEST(Report, TellsItAgainOnTheTerminal) {
  const Folder folder;
  write_results(folder);
  const Outcome o = twinrun(folder, {"report", "."}, {{"LC_ALL", "C.UTF-8"}});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, to_terminal(examples::engine_bug(), {.whole = false}));
  EXPECT_EQ(twinrun(folder, {"report", "report.json"}, {{"LC_ALL", "C.UTF-8"}}).out, o.out)
      << "the file will do as well";
  const Outcome whole = twinrun(folder, {"report", ".", "-v"}, {{"LC_ALL", "C.UTF-8"}});
  EXPECT_EQ(whole.out, to_terminal(examples::engine_bug(), {.whole = true}));
}

// The script that report-schema.md gives, and the Python package, agree with twinrun on what is
// whole.
TEST(Report, PythonCanCheckTheChecksum) {
  const Folder folder;
  write_results(folder);
  const std::string docs = read_text(TWINRUN_SOURCE_DIR "/docs/reference/report-schema.md");
  const std::string open = "```python\n";
  const size_t begin = docs.find(open, docs.find("## Checksum")) + open.size();
  write_text(folder / "check.py", docs.substr(begin, docs.find("```", begin) - begin));
  write_text(folder / "package.py", R"(import sys
sys.path.insert(0, ")" TWINRUN_SOURCE_DIR R"(/adapters/twinrun")
import checksum
document = checksum.loads(open(sys.argv[1], "rb").read())
assert "checksum" not in document
for x in (float("nan"), float("inf"), -float("inf")):  # JSON has none of them
    assert checksum.loads(checksum.dumps({"a": [x, 1.5]}).encode()) == {"a": [str(x), 1.5]}
open("own.json", "w").write(checksum.dumps(document))
)");
  const auto python = [&](const std::string& script, const std::string& file) {
    const std::string command =
        "cd '" + folder.path() + "' && /usr/bin/python3 " + script + " " + file + " 2>err";
    return std::system(command.c_str());
  };
  EXPECT_EQ(python("check.py", "report.json"), 0) << read_text(folder / "err");
  EXPECT_EQ(python("package.py", "report.json"), 0) << read_text(folder / "err");
  EXPECT_EQ(python("check.py", "own.json"), 0) << read_text(folder / "err");
  EXPECT_EQ(report(folder, {"own.json", "--format", "json"}).code, 0);

  std::string text = read_text(folder / "report.json");
  text.replace(text.find("\"quick\": false"), 14, "\"quick\": true ");
  write_text(folder / "report.json", text);
  EXPECT_NE(python("check.py", "report.json"), 0);
  EXPECT_NE(python("package.py", "report.json"), 0);
  const Outcome o = report(folder, {"report.json"});
  EXPECT_EQ(o.code, 128);
  EXPECT_TRUE(o.says("was changed after it was written")) << o.err;
}

TEST(Report, TheTerminalDecidesWidthColorAndSigns) {
  const Folder folder;
  write_results(folder);
  const Report r = examples::engine_bug();
  const auto on_terminal = [&](const std::map<std::string, std::string>& environment,
                               unsigned short columns) {
    std::string seen = twinrun_on_terminal(folder, {"report", ".", "-v"}, environment, columns).out;
    std::erase(seen, '\r');
    return seen;
  };
  const std::map<std::string, std::string> utf8 = {{"LC_ALL", "C.UTF-8"}};
  EXPECT_EQ(on_terminal(utf8, 60), to_terminal(r, {.width = 60, .color = true}));
  EXPECT_EQ(on_terminal(utf8, 20), to_terminal(r, {.width = 80, .color = true}));
  EXPECT_EQ(on_terminal({{"LC_ALL", "C.UTF-8"}, {"NO_COLOR", "1"}}, 120),
            to_terminal(r, {.width = 120}));
  EXPECT_EQ(on_terminal({{"LC_ALL", "C"}, {"TERM", "dumb"}}, 80),
            to_terminal(r, {.width = 80, .unicode = false}));
  EXPECT_EQ(twinrun(folder, {"report", ".", "-v"}, utf8).out, to_terminal(r, {})) << "no terminal";
}

TEST(Report, EveryFormatOfAFileIsTheOneOfTheDiagnosis) {
  const Folder folder;
  write_results(folder);
  for (const ReportFormat& format : report_formats()) {
    const Outcome o = report(folder, {".", "--format", std::string(format.name), "-o", "again"});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_EQ(read_text(folder / ("again/" + std::string(format.file))),
              format.render(examples::engine_bug()))
        << format.name;
  }
}

TEST(Report, OneFileAnywhere) {
  const Folder folder;
  write_results(folder);
  EXPECT_EQ(report(folder, {".", "--format", "markdown", "-o", "filing.md"}).code, 0);
  EXPECT_EQ(read_text(folder / "filing.md"), to_markdown(examples::engine_bug()));
  const Outcome piped = report(folder, {".", "--format", "markdown", "-o", "-"});
  EXPECT_EQ(piped.out, to_markdown(examples::engine_bug()));
}

TEST(Report, FoldersOfTables) {
  const Folder folder;
  write_results(folder);
  const Outcome o = report(folder, {".", "--format", "csv,tensorboard", "-o", "out"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.out, "out/csv\nout/tensorboard\n");
  for (const ReportFile& file : to_csv(examples::engine_bug()))
    EXPECT_EQ(read_text(folder / ("out/csv/" + file.name)), file.content) << file.name;
  for (const char* run : {"R", "R2", "R1", "E1", "S", "T"})
    EXPECT_TRUE(
        fs::exists(folder / fmt::format("out/tensorboard/{}/events.out.tfevents.0.twinrun", run)))
        << run;
}

TEST(Report, BadInputIsNamed) {
  const Folder folder;
  write_results(folder);
  write_text(folder / "cut.json", read_text(folder / "report.json").substr(0, 900));
  write_text(folder / "file", "");
  const auto refused = [&](const Words& words, const std::string& part) {
    const Outcome o = report(folder, words);
    EXPECT_EQ(o.code, 128) << o.err;
    EXPECT_TRUE(o.says(part)) << part << ": " << o.err;
  };
  refused({".", "--format", "markdwn"}, "did you mean 'markdown'?");
  refused({".", "--format", "json,"}, "unknown value ''");
  refused({"elsewhere"}, "elsewhere");
  refused({"cut.json"}, "cut.json: not a JSON document: it is not JSON at byte");
  refused({".", "--format", "json,markdown", "-o", "file"}, "file: cannot make this folder");
  refused({".", "--format", "json,markdown", "-o", "-"}, "one format of one file");
  refused({".", "--format", "csv", "-o", "-"}, "one format of one file");
}

}  // namespace
}  // namespace twinrun::e2e
