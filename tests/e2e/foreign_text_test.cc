// Tests that nothing in a file, a scenario, a program or an engine's answer reaches the terminal as
// a control character: escape sequences, C1 controls, line ends inside of names, bidirectional
// overrides and broken UTF-8.
#include <algorithm>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

// As TOML and JSON write it: ESC [ 2 J, BEL, C1 CSI, DEL, a right-to-left override.
const std::string kHostile = R"(a\u001b[2J\u0007\u009b1m\u007f\u202eb)";
const std::string kScenario = "name = \"" + kHostile + "\"\ndescription = \"" + kHostile +
                              R"("
[data]
train = 64
eval = 32
[[model.layers]]
kind = "flatten"
[[model.layers]]
kind = "dense"
units = 10
[optimizer]
kind = "sgd"
lr = 0.05
[train]
batch = 32
steps = 2
[tpu]
cores = 2
)";

// What a terminal must not get; `\r\x1b[K` erases our own live line.
void expect_printable(std::string text, const std::string& what) {
  for (const std::string own : {"\r\x1b[K"}) {
    for (size_t at; (at = text.find(own)) != std::string::npos;) text.erase(at, own.size());
  }
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    const bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
    const bool c1 =
        c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0;
    const bool override_ = text.compare(i, 3, "\xe2\x80\xae") == 0;
    ASSERT_FALSE(control || c1 || override_)
        << what << ": byte " << int{c} << " after ..." << text.substr(i < 60 ? 0 : i - 60, 60);
  }
}

class ForeignText : public testing::Test {
 protected:
  Outcome run(const Words& words) {
    const Outcome o = twinrun(folder_, words);
    expect_printable(o.out, words[0] + ", stdout");
    expect_printable(o.err, words[0] + ", stderr");
    return o;
  }
  Folder folder_;
};

TEST_F(ForeignText, OfAScenarioAndItsRuns) {
  write_text(folder_ / "s.toml", kScenario);
  EXPECT_EQ(run({"inspect", "s.toml"}).code, 0);
  EXPECT_EQ(run({"check", "s.toml"}).code, 0);
  EXPECT_EQ(run({"train", "s.toml", "-v", "-o", "run.h5"}).code, 0);
  EXPECT_EQ(run({"inspect", "run.h5"}).code, 0);
  EXPECT_EQ(run({"train", "s.toml", "--snapshot", "-o", "init.h5"}).code, 0);
  EXPECT_EQ(run({"inspect", "init.h5"}).code, 0);
  const Outcome d = run({"diagnose", "s.toml", "--quick", "-v", "-o", "out"});
  EXPECT_EQ(d.code, 125) << d.err;  // undecided without seeds
  EXPECT_EQ(run({"report", "out"}).code, 0);
  EXPECT_EQ(run({"report", "out", "--format", "markdown", "-o", "-"}).code, 0);
  EXPECT_EQ(run({"diff", "out/runs/R.h5", "run.h5"}).code, 0);
  expect_printable(read_text(folder_ / "out/report.md"), "report.md");
}

TEST_F(ForeignText, OfAnEngine) {
  write_text(folder_ / "s.toml", kScenario);
  write_text(folder_ / "engine.py", R"(import json, subprocess, sys
engine = subprocess.Popen([")" TWINRUN_DEV R"(", "serve", "--engine", "cpu", sys.argv[-1]],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
hostile = ")" + kHostile + R"(\nIDENTICAL  all is well"
for line in sys.stdin:
    engine.stdin.write(line)
    engine.stdin.flush()
    reply = json.loads(engine.stdout.readline())
    if "hello" in reply:
        reply["hello"].update(name=hostile, version=hostile, settings=hostile)
        if len(sys.argv) > 2:
            reply["hello"][sys.argv[1]] = "a\u0000b"
    print(json.dumps({"alive": hostile}), flush=True)
    print(json.dumps(reply), flush=True)
sys.exit(hostile)
)");
  const std::string engine = "exec:/usr/bin/python3 engine.py";
  const Outcome t = run({"train", "s.toml", "--engine", engine, "-v", "-o", "run.h5"});
  EXPECT_EQ(t.code, 0) << t.err;
  EXPECT_EQ(t.out.find("\nIDENTICAL"), std::string::npos) << t.out;
  EXPECT_EQ(t.err.find("\nIDENTICAL"), std::string::npos) << t.err;
  const Outcome i = run({"inspect", "run.h5"});
  EXPECT_EQ(i.code, 0);
  EXPECT_EQ(i.out.find("\nIDENTICAL"), std::string::npos) << i.out;
  run({"diagnose", "s.toml", "--quick", "--subject", engine, "-v", "-o", "out"});
  run({"doctor", "--engine", engine});

  // A NUL ends a text in run files: refused as the engine's fault, before anything is trained.
  for (const char* key : {"name", "version", "settings"}) {
    const Outcome n = run({"diagnose", "s.toml", "--subject", engine + " " + key, "-o", "nul"});
    EXPECT_EQ(n.code, 125) << key << n.err;
    EXPECT_TRUE(n.says("text without a NUL")) << n.err;
    EXPECT_FALSE(fs::exists(folder_ / "nul/runs/R.h5"));
  }
}

// A report of a stranger, whose file is right.
TEST_F(ForeignText, OfAReport) {
  write_text(folder_ / "report.json",
             R"({"schema": 2, "verdict": {"class": "NOISE", "headline": ")" + kHostile +
                 R"("}, "scenario": {"name": ")" + kHostile + R"("}, "notes": [")" + kHostile +
                 R"("], "findings": [{"class": "NOISE", "cause": ")" + kHostile +
                 R"(", "sentence": ")" + kHostile + R"("}], "directory": ")" + kHostile + "\"}");
  EXPECT_EQ(run({"report", "report.json"}).code, 0);
  EXPECT_EQ(run({"report", "report.json", "--format", "markdown", "-o", "-"}).code, 0);
  EXPECT_NE(run({"bundle", "."}).code, 0);
}

// In documents for other programs, escapes keep the values.
TEST_F(ForeignText, OfDocuments) {
  const std::string scenario =
      "description = \"a\xc2\x9b"
      "b\xE2\x80\xAE\"\n" +
      kScenario.substr(kScenario.find("[data]"));
  write_text(folder_ / "s.toml", scenario);
  const Words words = {"inspect", "s.toml", "--resolved"};
  const Outcome piped = run(words);
  EXPECT_EQ(piped.code, 0) << piped.err;
  EXPECT_NE(piped.out.find(R"(a\u009Bb\u202E)"), std::string::npos) << piped.out;
  std::string seen = twinrun_on_terminal(folder_, words).out;
  std::erase(seen, '\r');
  EXPECT_EQ(seen, piped.out);
  write_text(folder_ / "again.toml", piped.out);
  EXPECT_EQ(run({"inspect", "again.toml", "--resolved"}).out, piped.out);
  EXPECT_EQ(run({"train", "s.toml", "-o", "run.h5"}).code, 0);
  EXPECT_EQ(run({"inspect", "run.h5", "--resolved"}).out, piped.out);
  const std::string json = run({"inspect", "s.toml", "--json"}).out;
  EXPECT_EQ(nlohmann::json::parse(json).is_object(), true) << json;
}

}  // namespace
}  // namespace twinrun::e2e
