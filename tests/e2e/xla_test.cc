// Tests engine `xla` from the command line: the message where no plugin can be loaded and, if
// TWINRUN_PJRT_PLUGIN names one, real training.
#include <filesystem>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

class Xla : public testing::Test {
 protected:
  Folder folder_;
};

TEST_F(Xla, OneThatCannotStartIs125AndSaysWhy) {
  const std::string named = folder_ / "none.so";
  for (const Words& words :
       {Words{"train", "drill_mlp", "--engine", "xla", "--pjrt-plugin", named, "-o", "r.h5"},
        Words{"diagnose", "drill_mlp", "--subject", "xla:" + named, "-o", "out"}}) {
    const Outcome r = twinrun(folder_, words);
    EXPECT_EQ(r.code, 125) << words[0];
    EXPECT_TRUE(r.says(named + ": cannot be read")) << r.err;
    EXPECT_TRUE(r.says("TWINRUN_PJRT_PLUGIN")) << r.err;
  }
  // For `doctor`, an engine that does not start is a finding (exit code 1), not a failure to
  // answer.
  const Outcome r = twinrun(folder_, {"doctor", "--engine", "xla", "--pjrt-plugin", named});
  EXPECT_EQ(r.code, 1);
  EXPECT_TRUE(r.prints(named + ": cannot be read")) << r.out;
  EXPECT_TRUE(r.prints("does not start")) << r.out;
}

TEST_F(Xla, ExportLeavesTextArgumentsAndResults) {
  const Outcome r = twinrun(folder_, {"convert", "drill_dropout", "out", "--to", "stablehlo",
                                      "--cores", "4", "--values", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json_of(r.out)["files"].size(), 4u);
  const auto step = nlohmann::json::parse(read_text(folder_ / "out/step.json"));
  EXPECT_EQ(step["cores"], 4);
  EXPECT_EQ(step["arguments"].size(), json_of(r.out)["arguments"]);
  EXPECT_EQ(step["results"].size(), json_of(r.out)["results"]);
  EXPECT_NE(read_text(folder_ / "out/step.mlir").find("mhlo.num_replicas = 4"), std::string::npos);
  EXPECT_EQ(twinrun(folder_, {"convert", "drill_mlp"}).code, 128);
}

TEST_F(Xla, TrainsAndIsNoise) {
  if (::getenv("TWINRUN_PJRT_PLUGIN") == nullptr)
    GTEST_SKIP() << "TWINRUN_PJRT_PLUGIN names no plugin";
  for (const char* cores : {"1", "4"}) {
    double loss[2];
    for (const int xla : {0, 1}) {
      const Outcome r = twinrun(folder_, {"train", "drill_mlp", "--engine", xla ? "xla" : "cpu",
                                          "--cores", cores, "--json", "-q", "-o", "r.h5"});
      ASSERT_EQ(r.code, 0) << r.err;
      loss[xla] = json_of(r.out)["eval_loss"];
    }
    EXPECT_NEAR(loss[0], loss[1], 1e-5) << cores;
  }
  const Outcome r =
      twinrun(folder_, {"diagnose", "drill_mlp", "--subject", "xla", "--json", "-q", "-o", "out"});
  EXPECT_EQ(r.code, 0) << r.out.substr(0, 2000) << r.err;
  EXPECT_EQ(json_of(r.out)["findings"][0]["level"], "A");
}

}  // namespace
}  // namespace twinrun::e2e
