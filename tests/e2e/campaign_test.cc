// Tests --shard and --merge through the binary: the tables of shards are those of the whole.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

const Words kSeeds = {
    "compare",     "digits_mlp", "--b",           "tpu",   "--seeds",        "6",
    "-q",          "--set",      "train.steps=6", "--set", "data.train=128", "--set",
    "data.eval=32"};

TEST(Campaign, ShardsOfAComparisonGiveWhatTheWholeGives) {
  const Folder folder;
  const Outcome whole = twinrun(folder, kSeeds), json = twinrun(folder, with(kSeeds, {"--json"}));
  const char* shards[] = {"2/3", "0/3", "1/3"};
  for (const char* shard : shards) {
    const Outcome o = twinrun(folder, with(kSeeds, {"--shard", shard, "-o", "out"}));
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_TRUE(o.prints("twinrun compare --merge out")) << o.out;
  }
  const Outcome merged = twinrun(folder, {"compare", "--merge", "out", "-o", "merged"});
  EXPECT_EQ(merged.out, whole.out);
  EXPECT_EQ(merged.code, whole.code);
  EXPECT_EQ(twinrun(folder, {"compare", "--merge", "out", "-o", "merged", "--json"}).out, json.out);
  EXPECT_EQ(read_text(folder / "merged/comparison.json"), json.out);
  // With --resume nothing runs again: the seconds stay, too.
  const std::string before = read_text(folder / "out/shard-1-of-3/pairs.jsonl");
  ASSERT_NE(before, "");
  const Outcome again = twinrun(folder, with(kSeeds, {"--shard", "1/3", "-o", "out", "--resume"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(read_text(folder / "out/shard-1-of-3/pairs.jsonl"), before);
  // Another question is another campaign.
  const Outcome other =
      twinrun(folder, with(kSeeds, {"--shard", "1/3", "-o", "out", "--resume", "--margin", "1"}));
  EXPECT_EQ(other.code, 128);
  EXPECT_TRUE(other.says("another campaign (margin: 0 and 1)")) << other.err;
}

TEST(Campaign, AnIdenticalFirstPairDecidesAsInTheWhole) {
  const Folder folder;
  const Words same = {
      "compare",       "digits_mlp", "--seeds",       "4",     "-q",          "--set",
      "train.steps=3", "--set",      "data.train=64", "--set", "data.eval=32"};
  const Outcome whole = twinrun(folder, with(same, {"--json"}));
  for (const char* shard : {"0/2", "1/2"})
    EXPECT_EQ(twinrun(folder, with(same, {"--shard", shard, "-o", "out"})).code, 0);
  const Outcome merged = twinrun(folder, {"compare", "--merge", "out", "-o", "merged", "--json"});
  EXPECT_EQ(merged.out, whole.out);
  EXPECT_EQ(json_of(merged.out)["outcome"], "identical");
}

TEST(Campaign, SeedsOfADiagnosisFromShardsGiveItsReportSlow) {
  const Folder folder;
  const Words diagnose = {"diagnose",
                          "mlp_bn",
                          "-q",
                          "--set",
                          "train.steps=6",
                          "--set",
                          "tpu.batchnorm=synced",
                          "--set",
                          "tpu.batchnorm_group=3",
                          "--set",
                          "train.batch=48",
                          "--set",
                          "tpu.cores=6",
                          "--set",
                          "diagnose.seeds=2",
                          "--set",
                          "diagnose.max_seeds=4"};
  auto whole = json_of(twinrun(folder, with(diagnose, {"-o", "whole", "--json"})).out);
  for (const char* shard : {"1/2", "0/2"}) {
    const Outcome o = twinrun(folder, with(diagnose, {"-o", "out", "--shard", shard}));
    EXPECT_EQ(o.code, 0) << o.err;
  }
  auto joined =
      json_of(twinrun(folder, with(diagnose, {"-o", "joined", "--seeds", "out", "--json"})).out);
  for (auto* report : {&whole, &joined}) {  // the command line, which names another folder
    for (auto& finding : report->at("findings")) finding.erase("reproduce");
  }
  EXPECT_GT(whole["trajectories"].size(), 0u);
  EXPECT_GT(whole["trajectories"][0]["differences"].size(), 1u);
  for (const char* key : {"verdict", "findings", "trajectories", "loss_band", "smallest_effect"})
    EXPECT_EQ(joined.at(key), whole.at(key)) << key;
  // The runs of the shards were read, and none was trained: a seed that is missing is an error.
  fs::remove_all(folder / "out/shard-0-of-2");
  const Outcome missing = twinrun(folder, with(diagnose, {"-o", "joined", "--seeds", "out"}));
  EXPECT_EQ(missing.code, 128);
  EXPECT_TRUE(missing.says("1 of 2 shards missing: 0")) << missing.err;
  const Outcome fault = twinrun(folder, with(diagnose, {"--shard", "0/2", "--fault", "nan@*"}));
  EXPECT_EQ(fault.code, 128);
  EXPECT_TRUE(fault.says("planted faults")) << fault.err;
  const Outcome other = twinrun(
      folder, with(diagnose, {"-o", "out", "--shard", "1/2", "--resume", "--set", "seed=7"}));
  EXPECT_EQ(other.code, 128);
  EXPECT_TRUE(other.says("another campaign")) << other.err;
}

TEST(Campaign, ShardsOfADrillGiveTheFilesOfTheWholeSlow) {
  const Folder folder;
  fs::copy_file(TWINRUN_SOURCE_DIR "/tests/crash/tiny.toml", folder / "tiny.toml");
  const Words drill = {"drill", "tiny.toml", "--cases", "26", "-q"};
  const Outcome whole = twinrun(folder, with(drill, {"-o", "whole"}));
  ASSERT_TRUE(whole.code == 0 || whole.code == 1) << whole.err;
  for (const int count : {3, 7}) {
    const std::string out = "of" + std::to_string(count);
    for (int i = count - 1; i >= 0; --i) {
      const std::string shard = std::to_string(i) + "/" + std::to_string(count);
      const Outcome o = twinrun(folder, with(drill, {"-o", out, "--shard", shard}));
      EXPECT_EQ(o.code, 0) << o.err;  // misses are counted by merge
    }
    const Outcome merged =
        twinrun(folder, {"drill", "--merge", out, "-o", out + "/merged", "--json"});
    EXPECT_EQ(merged.code, whole.code) << merged.err;
    for (const char* file : {"drill.json", "drill.md", "cases.csv"}) {
      const std::string text = read_text(folder / ("whole/" + std::string(file)));
      EXPECT_GT(text.size(), 200u);
      EXPECT_EQ(read_text(folder / (out + "/merged/" + file)), text) << out << " " << file;
    }
    EXPECT_EQ(merged.out, read_text(folder / "whole/drill.json") + "\n");
    // What is not in the tables: where and how it ran.
    const auto run = json_of(read_text(folder / (out + "/merged/run.json")));
    EXPECT_EQ(run["runs"].size(), static_cast<size_t>(count));
    // The merged campaign is one that ran whole: it can be merged again, and gone on with.
    EXPECT_EQ(twinrun(folder, {"drill", "--merge", out + "/merged", "-o", "again"}).code,
              whole.code);
    EXPECT_EQ(read_text(folder / "again/drill.json"), read_text(folder / "whole/drill.json"));
  }
}

}  // namespace
}  // namespace twinrun::e2e
