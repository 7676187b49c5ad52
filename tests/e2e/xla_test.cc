// Tests engine `xla` from the command line: the message where no plugin can be loaded and, if
// TWINRUN_PJRT_PLUGIN names one, real training.
#include <filesystem>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

const std::string kFusedWrong = TWINRUN_SOURCE_DIR "/tests/harness/fusion/fixtures/fused_wrong";

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
  const auto report = json_of(r.out);
  EXPECT_EQ(report["findings"][0]["level"], "A");
  EXPECT_FALSE(report["module"]["steps"].empty()) << "the compiled step was judged, too";
}

// The step that XLA computes wrongly on a CPU only as users run it (openxla/xla#49176).
TEST_F(Xla, NamesTheOpsThatMayNotBeJoined) {
  if (::getenv("TWINRUN_PJRT_PLUGIN") == nullptr)
    GTEST_SKIP() << "TWINRUN_PJRT_PLUGIN names no plugin";
  const Words words = {"diagnose",  "--program", kFusedWrong + ".mlir",
                       "--subject", "xla",       "--json",
                       "-q",        "-o",        "out"};
  const Outcome r = twinrun(folder_, words);
  EXPECT_EQ(r.code, 20) << r.out.substr(0, 2000) << r.err;
  const auto report = json_of(r.out);
  EXPECT_EQ(report["verdict"]["row"], "joined_ops");
  const auto& module = report["module"];
  std::vector<std::string> names;
  for (const std::string op : module["joined"]) names.push_back(op.substr(0, op.find('@')));
  EXPECT_EQ(names, (std::vector<std::string>{"delay/slice", "delay/dynamic_update_slice",
                                             "delay/reshape"}));
  EXPECT_EQ(module["excerpt"], "joined_ops.mlir");
  EXPECT_NE(read_text(folder_ / "out/joined_ops.mlir").find("dynamic_update_slice"),
            std::string::npos);
  EXPECT_EQ(module["passes"][0], "algsimp") << module.dump();
  EXPECT_EQ(report["probes"][0]["rows"][0]["outside"], 0) << "op by op everything is right";

  const Outcome right =
      twinrun(folder_, words, {{"XLA_FLAGS", "--xla_disable_hlo_passes=algsimp"}});
  EXPECT_EQ(right.code, 0) << right.out.substr(0, 2000) << right.err;
  EXPECT_EQ(json_of(right.out)["verdict"]["class"], "NOISE");
}

// Steps that XLA computes rightly are not accused, fused or not.
TEST_F(Xla, AccusesNoImportedStepSlow) {
  if (::getenv("TWINRUN_PJRT_PLUGIN") == nullptr)
    GTEST_SKIP() << "TWINRUN_PJRT_PLUGIN names no plugin";
  for (const char* name : {"mlp_sgd.hlo", "mlp_sgd.mlir", "embedding_bag.mlir", "cnn_max_pool.mlir",
                           "recurrent.mlir"}) {
    const std::filesystem::path file =
        std::filesystem::path(TWINRUN_SOURCE_DIR "/tests/program/import/fixtures") / name;
    const Outcome r = twinrun(folder_, {"diagnose", "--program", file.string(), "--subject", "xla",
                                        "--json", "-q", "-o", "out"});
    EXPECT_EQ(r.code, 0) << file << r.out.substr(0, 2000) << r.err;
    if (r.code != 0) continue;
    const auto module = json_of(r.out)["module"];
    EXPECT_EQ(module["outside"], 0) << file;
    EXPECT_GT(module["elements"], 0) << file;
  }
}

}  // namespace
}  // namespace twinrun::e2e
