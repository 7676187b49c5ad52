// Tests `twinrun profile`: the files it writes, its JSON, and the input it rejects.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

TEST(ProfileVerb, LeavesItsFiles) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"profile", "use_tpus", "-o", "p/q", "--generation", "v3"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  EXPECT_NE(o.out.find("TPU v3-8, batch 200"), std::string::npos);
  EXPECT_EQ(folder.entries(),
            (std::set<std::string>{
                "p", "p/q", "p/q/plugins", "p/q/plugins/profile", "p/q/plugins/profile/modelled",
                "p/q/plugins/profile/modelled/twinrun.xplane.pb", "p/q/profile.json"}));
  const auto j = json_of(read_text(folder / "p/q/profile.json"));
  EXPECT_EQ(j["scenario"], "use_tpus");
  EXPECT_GT(j["ops"].size(), 20U);
  EXPECT_NE(o.out.find("xprof --logdir p/q"), std::string::npos) << o.out;
}

TEST(ProfileVerb, JsonAlone) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"profile", "resnet50", "--json", "--set", "train.batch=512"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["batch"], 512);
  EXPECT_TRUE(j["published"].empty()) << "the published runs had 1024";
  EXPECT_TRUE(folder.entries().empty());
}

TEST(ProfileVerb, Measured) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"profile", "digits_mlp", "--measured", "--engine", "cpu",
                                     "--steps", "2", "--threads", "1", "--json", "-q"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["source"], "measured");
  EXPECT_EQ(j["steps"].size(), 2U);
}

// What it writes for XProf is a capture like any other.
TEST(ProfileVerb, ShowsACapture) {
  const Folder folder;
  ASSERT_EQ(twinrun(folder, {"profile", "digits_mlp", "-o", "p"}).code, 0);
  const Outcome alone = twinrun(folder, {"profile", "--xplane", "p"});
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(alone.err, "");
  EXPECT_NE(alone.out.find("TPU v2-8, 8 devices of twinrun"), std::string::npos) << alone.out;
  EXPECT_EQ(alone.out.find("against"), std::string::npos);

  // The same step on another generation is faster or slower, and its ops are the same.
  const Outcome o =
      twinrun(folder, {"profile", "digits_mlp", "--generation", "v3", "--xplane", "p", "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = json_of(o.out);
  const auto written = json_of(read_text(folder / "p/profile.json"));
  EXPECT_NEAR(j["step_seconds"], written["step_seconds"], 1e-12);
  EXPECT_EQ(j["ops"].size(), written["ops"].size() + 1) << "and infeed, because the device waits";
  EXPECT_NE(j["comparison"]["step_seconds"], j["step_seconds"]);
  EXPECT_EQ(j["comparison"]["only_in_capture_seconds"], 0);
  EXPECT_EQ(j["comparison"]["only_in_model_seconds"], 0);
  EXPECT_NEAR(
      j["comparison"]["matched_seconds"],
      written["average"]["compute"].get<double>() + written["average"]["all_reduce"].get<double>(),
      1e-9);
}

TEST(ProfileVerb, SaysWhatIsWrong) {
  const Folder folder;
  const std::pair<Words, std::string> wrong[] = {
      {{"profile", "digits_mlp", "--generation", "v33"}, "did you mean 'v3'"},
      {{"profile", "digits_mlp", "--set", "train.batch=100"}, "100"},
      {{"profile", "digits_mlp", "--measured", "--engine", "exec:x"}, "cpu, tpu"},
      {{"profile", "digits_mlp", "--measured", "--steps", "0"}, "--steps"},
      {{"profile", "resnet50", "--set", "data.shape=[]"}, "data.shape"},
      {{"profile", "--xplane", "none.xplane.pb"}, "none.xplane.pb"},
      {{"profile", "--xplane", "."}, "holds no *.xplane.pb"},
      {{"profile", "--xplane", ".", "-o", "p"}, "--out: does not go with --xplane"},
      {{"profile", "digits_mlp", "--measured", "--xplane", "."}, "--measured: does not go with"},
      {{"profile"}, "neither a scenario nor a program"},
      {{"profile", "digits_mlp", "-o", "/dev/null/x"}, "/dev/null/x"}};
  for (const auto& [words, said] : wrong) {
    const Outcome o = twinrun(folder, words);
    EXPECT_EQ(o.code, 128) << words.back();
    EXPECT_NE(o.err.find(said), std::string::npos) << o.err;
    EXPECT_EQ(o.out, "");
  }
}

}  // namespace
}  // namespace twinrun::e2e
