// Tests the terminal output: live progress, colour, help of every verb, version, `doctor`.
#include <algorithm>
#include <regex>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

const Words kTrain = {"train", "digits_mlp",      "--engine",  "tpu", "--cores", "8",
                      "--set", "train.steps=400", "--threads", "1",   "-o",      "run.h5"};

bool has_color(const std::string& text) {
  return std::regex_search(text, std::regex("\x1b\\[[0-9;]*m"));
}

TEST(Terminal, LiveProgressWithRateAndTimeLeft) {
  const Folder folder;
  const Outcome o = twinrun_on_terminal(folder, kTrain);
  EXPECT_EQ(o.code, 0) << o.out;
  EXPECT_TRUE(o.prints("\r\x1b[K")) << o.out;
  EXPECT_TRUE(std::regex_search(
      o.out, std::regex("[0-9]+/400  [0-9.]+ steps/s  [0-9.]+ s left  loss [0-9.]+")))
      << o.out;
  // The last line shows the result, not a half-erased counter.
  EXPECT_TRUE(o.prints("held-out loss")) << o.out;
}

// A progress line that wraps could not be erased.
TEST(Terminal, LiveLineFitsTheTerminal) {
  const Folder folder;
  const Outcome o = twinrun_on_terminal(folder, kTrain, {}, 40);
  const std::regex live("\x1b\\[K(  tpu[^\r\n]*)\r\x1b");
  int lines = 0;
  for (std::sregex_iterator it(o.out.begin(), o.out.end(), live), end; it != end; ++it, ++lines) {
    EXPECT_LT((*it)[1].length(), 40) << (*it)[1];
  }
  EXPECT_GT(lines, 0) << o.out;
}

TEST(Terminal, DumbTerminalGetsPlainLines) {
  const Folder folder;
  const Outcome o = twinrun_on_terminal(folder, kTrain, {{"TERM", "dumb"}});
  EXPECT_EQ(o.out.find('\x1b'), std::string::npos) << o.out;
  EXPECT_TRUE(o.prints("held-out loss")) << o.out;
}

TEST(Terminal, QuietHasNoProgress) {
  const Folder folder;
  const Outcome o = twinrun_on_terminal(folder, with(kTrain, {"-q"}));
  EXPECT_FALSE(o.prints("steps/s")) << o.out;
  EXPECT_FALSE(o.prints("\r\x1b[K")) << o.out;
}

TEST(Terminal, PlainLinesElsewhere) {
  const Folder folder;
  const Outcome o = twinrun(folder, kTrain);
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(std::count(o.err.begin(), o.err.end(), '\n'), 1) << o.err;
  EXPECT_EQ(o.err.find('\r'), std::string::npos);
  EXPECT_EQ(o.err.find('\x1b'), std::string::npos);
  EXPECT_TRUE(o.says("held-out loss")) << o.err;
}

const Words kDiagnose = {"diagnose", "digits_mlp", "--quick",       "-q",        "-o",
                         "out",      "--set",      "train.steps=4", "--threads", "1"};

TEST(Terminal, ColorOnATerminalOnly) {
  const Folder folder;
  EXPECT_TRUE(has_color(twinrun_on_terminal(folder, kDiagnose).out));
  const Outcome o = twinrun(folder, kDiagnose);
  EXPECT_FALSE(has_color(o.out + o.err));
}

TEST(Terminal, NoColorIsHonoured) {
  const Folder folder;
  EXPECT_FALSE(has_color(twinrun_on_terminal(folder, kDiagnose, {{"NO_COLOR", "1"}}).out));
  EXPECT_FALSE(has_color(twinrun_on_terminal(folder, kDiagnose, {{"TERM", "dumb"}}).out));
  // no-color.org: NO_COLOR counts only if it is not empty.
  EXPECT_TRUE(has_color(twinrun_on_terminal(folder, kDiagnose, {{"NO_COLOR", ""}}).out));
  // The same holds for errors.
  const Words wrong = {"diagnoze"};
  EXPECT_TRUE(has_color(twinrun_on_terminal(folder, wrong).out));
  EXPECT_FALSE(has_color(twinrun_on_terminal(folder, wrong, {{"NO_COLOR", "1"}}).out));
  EXPECT_FALSE(has_color(twinrun_on_terminal(folder, wrong, {{"TERM", "dumb"}}).out));
}

TEST(Help, EveryVerbHasAnExampleThatBeginsWithIt) {
  const Folder folder;
  const Outcome top = twinrun(folder, {"--help"});
  EXPECT_EQ(top.code, 0);
  EXPECT_TRUE(top.prints("example:\n  twinrun ")) << top.out;
  EXPECT_TRUE(top.prints("exit codes")) << top.out;
  Words verbs;
  const std::regex row("\n  ([a-z]+) +[a-z]");
  for (std::sregex_iterator it(top.out.begin(), top.out.end(), row), end; it != end; ++it) {
    if ((*it)[1] != "twinrun") verbs.push_back((*it)[1]);
  }
  for (const char* verb : {"diagnose", "train", "diff", "inspect", "doctor", "convert"}) {
    EXPECT_NE(std::find(verbs.begin(), verbs.end(), verb), verbs.end()) << verb;
  }
  for (const std::string& verb : verbs) {
    for (const char* flag : {"--help", "-h"}) {
      const Outcome o = twinrun(folder, {verb, flag});
      EXPECT_EQ(o.code, 0) << verb;
      EXPECT_TRUE(o.prints("usage: twinrun " + verb)) << o.out;
      EXPECT_TRUE(o.prints("example:\n  twinrun " + verb)) << o.out;
      EXPECT_EQ(o.err, "") << verb;
    }
  }
}

// Library scenarios can be listed and shown, and the shown text is the same scenario.
TEST(Help, ScenariosAreListedAndShown) {
  const Folder folder;
  const Outcome list = twinrun(folder, {"inspect"});
  EXPECT_EQ(list.code, 0);
  for (const char* name : {"digits_mlp", "digits_cnn", "mnist_tutorial", "litmus_nan"}) {
    EXPECT_TRUE(list.prints(name)) << list.out;
  }
  const Outcome shown = twinrun(folder, {"inspect", "digits_mlp", "--toml"});
  EXPECT_EQ(shown.code, 0);
  write_text(folder / "mine.toml", shown.out);
  const auto digest = [&](const std::string& what) {
    return json_of(twinrun(folder, {"inspect", what, "--json"}).out)["scenario_digest"];
  };
  EXPECT_EQ(digest("mine.toml"), digest("digits_mlp"));
  // The resolved text has every key and is the same scenario again.
  write_text(folder / "resolved.toml",
             twinrun(folder, {"inspect", "digits_mlp", "--resolved"}).out);
  EXPECT_EQ(digest("resolved.toml"), digest("digits_mlp"));
  const Outcome unknown = twinrun(folder, {"inspect", "digits_mpl", "--toml"});
  EXPECT_EQ(unknown.code, 128);
  EXPECT_TRUE(unknown.says("did you mean \"digits_mlp\"?")) << unknown.err;
}

TEST(Help, Version) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"--version"});
  EXPECT_EQ(o.code, 0);
  EXPECT_TRUE(std::regex_match(
      o.out,
      std::regex("twinrun [0-9.]+ \\(contract [0-9]+, isa [a-z0-9-]+, [A-Za-z]+ build\\)\n")))
      << o.out;
}

TEST(Help, NothingIsAUsageError) {
  const Folder folder;
  EXPECT_EQ(twinrun(folder, {}).code, 128);
}

TEST(Doctor, IsContentWithBothEngines) {
  const Folder folder;
  for (const char* engine : {"cpu", "tpu"}) {
    const Outcome o = twinrun(folder, {"doctor", "--engine", engine});
    EXPECT_EQ(o.code, 0) << o.out;
    EXPECT_FALSE(o.prints("FAILED")) << o.out;
    EXPECT_TRUE(o.prints("known answer")) << o.out;
  }
}

// `doctor` says that AMX tiles and VDPBF16PS are used, or why they are not.
TEST(Doctor, TellsOfAmx) {
  const Folder folder;
  const auto row = [&](const char* isa, const std::string& name = "amx tiles") {
    const Outcome o = twinrun(folder, {"doctor", "--engine", "cpu"}, {{"TWINRUN_ISA", isa}});
    EXPECT_EQ(o.code, 0) << o.out;
    std::smatch found;
    return std::regex_search(o.out, found, std::regex("ok +" + name + " +([^\n]*)")) ? found.str(1)
                                                                                     : o.out;
  };
  EXPECT_EQ(row("avx512"), "not used: TWINRUN_ISA asks for less");
  const Words known = {"used", "not used: no AMX", "not used: the kernel refused tiles",
                       "not used: self test failed"};
  EXPECT_EQ(std::ranges::count(known, row("amx")), 1) << row("amx");
  EXPECT_EQ(row("amx"), row(""));
  EXPECT_EQ(row("avx512bf16"), "not used: TWINRUN_ISA asks for less");

  EXPECT_EQ(row("avx512", "vdpbf16ps"), "not used: TWINRUN_ISA asks for less");
  const Words wanted = {"used", "not used: no AVX512-BF16", "not used: self test failed"};
  const std::string asked = row("avx512bf16", "vdpbf16ps"), chosen = row("", "vdpbf16ps");
  EXPECT_EQ(std::ranges::count(wanted, asked), 1) << asked;
  if (asked == "used") {
    const Words reasons = {"used", "not used: AMX is faster",
                           "not used: FMA is faster on this CPU"};
    EXPECT_EQ(std::ranges::count(reasons, chosen), 1) << chosen;
  } else {
    EXPECT_EQ(std::ranges::count(Words{asked, "not used: AMX is faster"}, chosen), 1) << chosen;
  }
}

}  // namespace
}  // namespace twinrun::e2e
