// Tests `twinrun check --log` through the binary: exit codes, text, JSON, standard input.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

constexpr const char* kUneven =
    "ValueError: train batch size 100 must be divisible by number of replicas 8\n";
constexpr const char* kFull =
    "INFO:tensorflow:An error was raised while a session was being created. This may be due to a "
    "preemption\n"
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 9.08G of 7.48G hbm. Exceeded "
    "hbm capacity by 1.60G.\n";

TEST(CheckLog, ExitCodes) {
  const Folder folder;
  write_text(folder / "error.log", kUneven);
  write_text(folder / "remark.log", "Some donated buffers were not usable: f32[2,3]\n");
  write_text(folder / "unknown.log", "one\ntwo\nthree\n");
  EXPECT_EQ(twinrun(folder, {"check", "--log", "error.log"}).code, 1);
  EXPECT_EQ(twinrun(folder, {"check", "--log", "remark.log"}).code, 0);
  const Outcome nothing = twinrun(folder, {"check", "--log", "unknown.log"});
  EXPECT_EQ(nothing.code, 0);
  EXPECT_TRUE(nothing.prints("nothing known in 3 lines")) << nothing.out;
  for (const char* file : {"absent.log", "."}) {
    const Outcome o = twinrun(folder, {"check", "--log", file});
    EXPECT_EQ(o.code, 128) << file;
    EXPECT_TRUE(o.says(file)) << o.err;
  }
}

TEST(CheckLog, TextNamesMeaningFixRuleAndPlace) {
  const Folder folder;
  write_text(folder / "error.log", kUneven);
  const Outcome alone = twinrun(folder, {"check", "--log", "error.log"});
  EXPECT_TRUE(alone.prints("cause batch-size-uneven  line 1")) << alone.out;
  EXPECT_TRUE(alone.prints("batch-not-divisible: the batch cannot be shared evenly")) << alone.out;
  EXPECT_TRUE(alone.prints("1 cause, 0 consequences, 0 remarks")) << alone.out;
  const Outcome beside =
      twinrun(folder, {"check", "digits_cnn", "--set", "train.batch=100", "--log", "error.log"});
  EXPECT_TRUE(beside.prints("which check finds, too: --set train.batch")) << beside.out;
  EXPECT_TRUE(beside.prints("--set train.batch=104")) << beside.out;
  const Outcome other = twinrun(folder, {"check", "digits_cnn", "--log", "error.log"});
  EXPECT_TRUE(other.prints("not found in")) << other.out;
}

TEST(CheckLog, CausesFirstAndWhatWouldSaveMemory) {
  const Folder folder;
  write_text(folder / "full.log", kFull);
  const Outcome o =
      twinrun(folder, {"check", "resnet50", "--set", "data.dir=gs://b", "--log", "full.log"});
  EXPECT_EQ(o.code, 1);
  EXPECT_LT(o.out.find("cause hbm-full"), o.out.find("consequence session-renewed")) << o.out;
  EXPECT_TRUE(o.prints("saves it")) << o.out;
  EXPECT_TRUE(o.prints("--set train.batch=")) << o.out;
}

TEST(CheckLog, Json) {
  const Folder folder;
  write_text(folder / "full.log", kFull);
  const auto j = json_of(twinrun(folder, {"check", "resnet50", "--log", "full.log", "--json"}).out);
  EXPECT_EQ(j["kind"], "check-log");
  EXPECT_EQ(j["lines"], 2);
  EXPECT_EQ(j["causes"], 1);
  ASSERT_EQ(j["findings"].size(), 2U);
  const auto& f = j["findings"][0];
  EXPECT_EQ(f["id"], "hbm-full");
  EXPECT_EQ(f["line"], 2);
  EXPECT_EQ(f["arguments"]["limit"], "7.48G");
  EXPECT_EQ(f["memory"]["limit"], 8031588843);
  EXPECT_FALSE(f["advice"].empty());
  EXPECT_EQ(f["doc"], "docs/guides/check.md#log-hbm-full");
}

TEST(CheckLog, StandardInputAndHostileBytes) {
  const Folder folder;
  write_text(folder / "raw.log",
             std::string("\x1b[31mGradient for w\x1b]0;x\x07\x9b\xe2\x80\xae\xff is NaN\0\n", 41));
  const std::string command = std::string(TWINRUN_BINARY) + " check --log - < " +
                              (folder / "raw.log").string() + " > " + (folder / "out").string();
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  const std::string out = read_text(folder / "out");
  EXPECT_NE(out.find("standard input: 1 line"), std::string::npos) << out;
  EXPECT_NE(out.find("cause training-nan"), std::string::npos) << out;
  for (const char* bad : {"\x1b", "\x9b", "\xe2\x80\xae", "\xff", "\x07"})
    EXPECT_EQ(out.find(bad), std::string::npos);
}

}  // namespace
}  // namespace twinrun::e2e
