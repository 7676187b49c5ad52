// Tests drill --share through the binary: the records of all shares together make the tables of the whole.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

TEST(Campaign, SharesOfADrillGiveTheFilesOfTheWholeSlow) {
  const Folder folder;
  fs::copy_file(TWINRUN_SOURCE_DIR "/tests/crash/tiny.toml", folder / "tiny.toml");
  const Words drill = {"drill", "tiny.toml", "--cases", "26", "-q"};
  const Outcome whole = twinrun(folder, with(drill, {"-o", "whole"}));
  ASSERT_TRUE(whole.code == 0 || whole.code == 1) << whole.err;
  for (const int count : {3, 7}) {
    const std::string all = "of" + std::to_string(count);
    std::string records;
    for (int i = count - 1; i >= 0; --i) {
      const std::string share = std::to_string(i) + "/" + std::to_string(count),
                        out = all + "." + std::to_string(i);
      const Outcome o = twinrun(folder, with(drill, {"-o", out, "--share", share}));
      EXPECT_TRUE(o.code == 0 || o.code == 1) << o.err;
      records += read_text(folder / (out + "/cases.jsonl"));
    }
    fs::create_directory(folder / all);
    write_text(folder / (all + "/cases.jsonl"), records);
    const Outcome joined = twinrun(folder, with(drill, {"-o", all, "--resume", "--json"}));
    EXPECT_EQ(joined.code, whole.code) << joined.err;
    for (const char* file : {"drill.json", "drill.md", "cases.csv"}) {
      const std::string text = read_text(folder / ("whole/" + std::string(file)));
      EXPECT_GT(text.size(), 200u);
      EXPECT_EQ(read_text(folder / (all + "/" + file)), text) << all << " " << file;
    }
    EXPECT_EQ(joined.out, read_text(folder / "whole/drill.json") + "\n");
  }
  // Records of a scenario that was changed meanwhile are not those of this drill.
  std::string text = read_text(folder / "tiny.toml");
  write_text(folder / "tiny.toml", text.replace(text.find("seed = "), 7, "seed = 1"));
  const Outcome other = twinrun(folder, with(drill, {"-o", "of3", "--resume"}));
  EXPECT_EQ(other.code, 128);
  EXPECT_TRUE(other.says("was recorded with another")) << other.err;
  const Outcome wrong = twinrun(folder, with(drill, {"--share", "3/3"}));
  EXPECT_EQ(wrong.code, 128);
  EXPECT_TRUE(wrong.says("allowed: I/N")) << wrong.err;
}

}  // namespace
}  // namespace twinrun::e2e
