// Tests `twinrun diagnose --program` on training steps that JAX exported: the verdict, faults named
// by the user's source, and errors for files that do not fit.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

nlohmann::json diagnose(const Folder& folder, const std::string& name, const Words& more,
                        int code) {
  const Outcome o = twinrun(folder, with({"diagnose", "--program", kFixtures + name + ".hlo",
                                          "--json", "-q", "-o", "out", "--set", "train.steps=8"},
                                         more));
  EXPECT_EQ(o.code, code) << o.out.substr(0, 3000) << o.err;
  return json_of(o.out);
}

TEST(ImportedProgram, IsNoiseOnTheEmulatedTpu) {
  const Folder folder;
  for (const char* name : {"mlp_momentum", "cnn_batch_norm", "transformer"}) {
    const auto report = diagnose(folder, name, {}, 0);
    EXPECT_EQ(report["verdict"]["class"], "NOISE") << name;
    EXPECT_EQ(report["findings"][0]["cause"], "precision") << name;
    for (const auto& control : report["controls"])
      EXPECT_TRUE(control["passed"]) << name << control;
    EXPECT_TRUE(report["runs"][0]["eval_loss"].is_null());
  }
}

TEST(ImportedProgram, ConformingEnginesAreNotAccused) {
  const Folder folder;
  for (const char* seed : {"honest:3", "honest:4"}) {
    for (const char* name : {"mlp_adam", "cnn_strided", "embedding_bag"}) {
      const auto report = diagnose(folder, name, {"--subject", seed}, 0);
      EXPECT_EQ(report["verdict"]["class"], "NOISE") << name << " " << seed;
    }
  }
}

TEST(ImportedProgram, AFaultIsNamedByThePlaceInTheSource) {
  const Folder folder;
  const auto report =
      diagnose(folder, "mlp_momentum",
               {"--fault", "drop_k_tail@dense2/dot_general.grad@make_fixtures.py:38,from=3"}, 20);
  EXPECT_EQ(report["verdict"]["class"], "ENGINE_BUG");
  EXPECT_EQ(report["findings"][0]["op"], "dense2/dot_general.grad@make_fixtures.py:38");
  EXPECT_EQ(report["findings"][0]["step"], 3);
}

// A Flax transformer under AdamW with dropout, and layers under nn.scan, as people write them.
TEST(ImportedProgram, ModelsOfPeopleGetAVerdict) {
  const Folder folder;
  for (const char* name : {"flax_transformer", "scanned_layers", "flax_moe"}) {
    const auto report = diagnose(folder, name, {}, 0);
    EXPECT_EQ(report["verdict"]["class"], "NOISE") << name;
  }
}

TEST(ImportedProgram, AFaultInOneIterationOfALoopIsNamed) {
  const Folder folder;
  const std::string op = "step/model/Decoder/layers/up/dot_general[1]@linear.py:199";
  const auto report = diagnose(folder, "scanned_layers", {"--fault", "drop_k_tail@" + op}, 20);
  EXPECT_EQ(report["verdict"]["class"], "ENGINE_BUG");
  EXPECT_EQ(report["findings"][0]["op"], op);
}

TEST(ImportedProgram, StableHloIsToldByItsContentNotItsName) {
  const Folder folder;
  fs::copy_file(kFixtures + "mlp_momentum.mlir", folder / "program.txt");
  for (const char* ending : {"json", "state.npz", "batch.npz"})
    fs::copy_file(kFixtures + "mlp_momentum." + ending,
                  folder / (std::string("program.") + ending));
  const Outcome o =
      twinrun(folder, {"diagnose", "--program", "program.txt", "--json", "-q", "-o", "out", "--set",
                       "train.steps=8", "--fault",
                       "drop_k_tail@dense2/dot_general.grad@make_fixtures.py:38:2,from=3"});
  EXPECT_EQ(o.code, 20) << o.err;
  EXPECT_EQ(json_of(o.out)["findings"][0]["op"], "dense2/dot_general.grad@make_fixtures.py:38:2");
}

TEST(ImportedProgram, AnExportedStepOfOneCoreComesBack) {
  const Folder folder;
  EXPECT_EQ(twinrun(folder, {"export", "drill_mlp", "--stablehlo", "-o", "one"}).code, 0);
  const Outcome one = twinrun(folder, {"diagnose", "--program", "one/step.mlir", "--json", "-q",
                                       "-o", "out", "--set", "train.steps=4"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(json_of(one.out)["verdict"]["class"], "NOISE");
  EXPECT_EQ(
      twinrun(folder, {"export", "drill_mlp", "--stablehlo", "--cores", "4", "-o", "four"}).code,
      0);
  const Outcome four = twinrun(folder, {"diagnose", "--program", "four/step.mlir"});
  EXPECT_EQ(four.code, 128);
  EXPECT_TRUE(four.says("all-reduce (f32")) << four.err;
  EXPECT_TRUE(four.says("a step of one core")) << four.err;
}

TEST(ImportedProgram, FilesThatDoNotFitAreToldInFull) {
  const Folder folder;
  const std::string program = kFixtures + "mlp_sgd.hlo";
  const Outcome state = twinrun(
      folder, {"diagnose", "--program", program, "--state", kFixtures + "mlp_momentum.state.npz"});
  EXPECT_EQ(state.code, 128);
  EXPECT_NE(state.err.find("'state1/dense1/bias' is not a state variable"), std::string::npos)
      << state.err;
  const Outcome batch = twinrun(
      folder, {"diagnose", "--program", program, "--batch", kFixtures + "cnn_max_pool.batch.npz"});
  EXPECT_EQ(batch.code, 128);
  EXPECT_NE(batch.err.find("'images' is float32[4,3,8,8,1]; allowed: f32[6,8]"), std::string::npos)
      << batch.err;
  const Outcome key = twinrun(folder, {"diagnose", "--program", program, "--set", "train.batch=3"});
  EXPECT_EQ(key.code, 128);
  EXPECT_NE(key.err.find("'train.batch' has no meaning for an imported program"), std::string::npos)
      << key.err;
  write_text(folder / "bad.json", R"({"state": ["a"], "inputs": [], "los": 1})");
  const Outcome binding =
      twinrun(folder, {"diagnose", "--program", program, "--binding", "bad.json"});
  EXPECT_EQ(binding.code, 128);
  EXPECT_NE(binding.err.find("did you mean 'loss'?"), std::string::npos) << binding.err;
  const Outcome both = twinrun(folder, {"diagnose", "digits_mlp", "--program", program});
  EXPECT_EQ(both.code, 128);
  const Outcome stablehlo = twinrun(folder, {"diagnose", "--program", "bad.json"});
  EXPECT_NE(stablehlo.err.find("allowed: HLO text"), std::string::npos) << stablehlo.err;
}

}  // namespace
}  // namespace twinrun::e2e
