// Tests `twinrun diagnose --program` on training steps that JAX exported: the verdict, faults named
// by the user's source, and errors for files that do not fit.
#include <regex>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

nlohmann::json diagnose(const Folder& folder, const std::string& name, const Words& more,
                        int code) {
  const Outcome o = twinrun(folder, with({"diagnose", "--program", jax_step(name), "--json", "-q",
                                          "-o", "out", "--set", "train.steps=8"},
                                         more));
  EXPECT_EQ(o.code, code) << o.out.substr(0, 3000) << o.err;
  return json_of(o.out);
}

TEST(ImportedProgram, IsNoiseOnTheEmulatedTpu) {
  const Folder folder;
  for (const char* name : {"mlp_momentum.hlo", "cnn_batch_norm.hlo", "transformer.hlo"}) {
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
    for (const char* name : {"mlp_adam.hlo", "cnn_strided.hlo", "embedding_bag.hlo"}) {
      const auto report = diagnose(folder, name, {"--subject", seed}, 0);
      EXPECT_EQ(report["verdict"]["class"], "NOISE") << name << " " << seed;
    }
  }
}

TEST(ImportedProgram, AFaultIsNamedByThePlaceInTheSource) {
  const Folder folder;
  const auto report =
      diagnose(folder, "mlp_momentum.hlo",
               {"--fault", "drop_k_tail@dense2/dot_general.grad@make_fixtures.py:38,from=3"}, 20);
  EXPECT_EQ(report["verdict"]["class"], "ENGINE_BUG");
  EXPECT_EQ(report["findings"][0]["op"], "dense2/dot_general.grad@make_fixtures.py:38");
  EXPECT_EQ(report["findings"][0]["step"], 3);
}

// A file of safetensors with one array.
void write_array(const std::string& path, const std::string& name, const std::string& dtype,
                 const std::string& shape, const std::string& bytes) {
  std::string header = "{\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":" + shape +
                       ",\"data_offsets\":[0," + std::to_string(bytes.size()) + "]}}";
  while (header.size() % 8 != 0) header += ' ';
  std::string size(8, '\0');
  for (size_t i = 0; i < 2; ++i) size[i] = static_cast<char>(header.size() >> (8 * i));
  std::ofstream(path, std::ios::binary) << size << header << bytes;
}

// `check` and `diagnose` say the same of an input of u8: a warning, and the step is diagnosed.
TEST(ImportedProgram, WhatCheckFindsIsInTheReport) {
  const Folder folder;
  std::ofstream(folder / "step.hlo")
      << "HloModule jit_step\n\nENTRY main {\n  w = f32[4] parameter(0)\n"
         "  x = u8[4] parameter(1)\n  c = f32[4] convert(x)\n  k = f32[4] multiply(w, c)\n"
         "  w2 = f32[4] subtract(w, k)\n  loss = f32[] constant(1)\n"
         "  ROOT out = (f32[4], f32[]) tuple(w2, loss)\n}\n";
  write_array(folder / "step.state.safetensors", "w", "F32", "[4]", std::string(16, '\x3d'));
  write_array(folder / "step.batch.safetensors", "x", "U8", "[2,4]", std::string(8, '\x01'));
  const Words step = {"--program", "step.hlo"};
  const auto found = json_of(twinrun(folder, with({"check", "--json"}, step)).out);
  ASSERT_EQ(found["rules"].size(), 1U) << found;
  EXPECT_EQ(found["rules"][0]["id"], "infeed-type");
  EXPECT_EQ(found["errors"], 0);
  const Outcome o =
      twinrun(folder, with({"diagnose", "--state", "step.state.safetensors", "--batch",
                            "step.batch.safetensors", "--json", "-q", "-o", "out"},
                           step));
  ASSERT_EQ(o.code, 0) << o.err;
  const std::string notes = json_of(o.out)["notes"].dump();
  EXPECT_NE(notes.find("twinrun check: warning infeed-type (step.hlo:5: x): an input of u8[4]"),
            std::string::npos)
      << notes;
}

// A Flax transformer under AdamW with dropout, and layers under nn.scan, as people write them.
TEST(ImportedProgram, ModelsOfPeopleFromJaxGetAVerdict) {
  const Folder folder;
  for (const char* name : {"flax_transformer.mlir", "scanned_layers.mlir", "flax_moe.mlir"}) {
    TWINRUN_NEEDS_JAX_STEP(name);
    const auto report = diagnose(folder, name, {}, 0);
    EXPECT_EQ(report["verdict"]["class"], "NOISE") << name;
  }
}

TEST(ImportedProgram, AFaultInOneIterationOfALoopFromJaxIsNamed) {
  TWINRUN_NEEDS_JAX_STEP("scanned_layers.mlir");
  const Folder folder;
  const std::string op = "step/model/Decoder/layers/up/dot_general[1]@linear.py:199";
  const auto report = diagnose(folder, "scanned_layers.mlir", {"--fault", "drop_k_tail@" + op}, 20);
  EXPECT_EQ(report["verdict"]["class"], "ENGINE_BUG");
  EXPECT_EQ(report["findings"][0]["op"], op);
}

TEST(ImportedProgram, StableHloIsToldByItsContentNotItsName) {
  const Folder folder;
  fs::copy_file(jax_step("mlp_momentum.mlir"), folder / "program.txt");
  for (const char* ending : {"json", "state.npz", "batch.npz"})
    fs::copy_file(jax_step(std::string("mlp_momentum.") + ending),
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
  EXPECT_EQ(twinrun(folder, {"convert", "drill_mlp", "one", "--to", "stablehlo"}).code, 0);
  const Outcome one = twinrun(folder, {"diagnose", "--program", "one/step.mlir", "--json", "-q",
                                       "-o", "out", "--set", "train.steps=4"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(json_of(one.out)["verdict"]["class"], "NOISE");
}

TEST(ImportedProgram, AnExportedStepOfSeveralCoresComesBack) {
  const Folder folder;
  EXPECT_EQ(
      twinrun(folder, {"convert", "drill_mlp", "four", "--to", "stablehlo", "--cores", "4"}).code,
      0);
  const Outcome four = twinrun(folder, {"diagnose", "--program", "four/step.mlir", "--json", "-q",
                                        "-o", "out", "--set", "train.steps=4"});
  EXPECT_EQ(four.code, 0) << four.err;
  const auto report = json_of(four.out);
  EXPECT_EQ(report["verdict"]["class"], "NOISE");
  EXPECT_EQ(report["runs"][0]["settings"], "4 cores, sharded by its user");
}

// A data-parallel step of JAX on eight devices: as it is, and with its reductions left out.
TEST(ImportedProgram, ShardedByItsUserIsJudgedAgainstOneDevice) {
  const Folder folder;
  const std::string whole = jax_step("shard_mean_whole.hlo");
  const auto right = diagnose(folder, "shard_mean.hlo", {"--whole", whole}, 0);
  EXPECT_EQ(right["verdict"]["class"], "NOISE");
  std::string text = read_text(jax_step("shard_mean.hlo"));
  text = std::regex_replace(
      text, std::regex("(f32\\[[0-9,]+\\]\\{[0-9,]+\\}) all-reduce\\(([a-z_.0-9]+)\\)"),
      "$1 copy($2)");
  write_text(folder / "wrong.hlo", text);
  for (const char* ending : {".json", ".state.npz", ".batch.npz"})
    fs::copy_file(jax_step(std::string("shard_mean") + ending),
                  folder / (std::string("wrong") + ending));
  const Words words = {"diagnose", "--program", "wrong.hlo", "--json", "-q", "-o", "out"};
  for (const Words& more : {Words{}, Words{"--whole", whole}}) {
    const Outcome wrong = twinrun(folder, with(words, more));
    EXPECT_EQ(wrong.code, 10) << wrong.err;
    const auto report = json_of(wrong.out);
    EXPECT_EQ(report["verdict"]["class"], "SHARDING");
    EXPECT_EQ(report["findings"][0]["cause"], more.empty() ? "user_sharding" : "no_all_reduce");
  }
  const Outcome scenario = twinrun(folder, {"diagnose", "drill_mlp", "--whole", whole});
  EXPECT_EQ(scenario.code, 128);
  EXPECT_TRUE(scenario.says("--whole")) << scenario.err;
}

// Cores that are fed rows of their own come to hold different copies: that is no fault of the engine.
TEST(ImportedProgram, CoresWithRowsOfTheirOwnAreNotHeldToBeAlike) {
  const Folder folder;
  ASSERT_EQ(twinrun(folder, {"convert", "digits_mlp", "step", "--to", "stablehlo", "--cores", "4",
                             "--set", "tpu.reduction=none"})
                .code,
            0);
  const Outcome wrong =
      twinrun(folder, {"diagnose", "step/step.mlir", "--state", "step/arguments.safetensors",
                       "--batch", "step/arguments.safetensors", "--binding", "step/step.json",
                       "--json", "-q", "-o", "out"});
  EXPECT_EQ(wrong.code, 10) << wrong.err;
  EXPECT_EQ(json_of(wrong.out)["findings"][0]["cause"], "user_sharding");
}

TEST(ImportedProgram, FilesThatDoNotFitAreToldInFull) {
  const Folder folder;
  const std::string program = jax_step("mlp_sgd.hlo");
  const Outcome state = twinrun(
      folder, {"diagnose", "--program", program, "--state", jax_step("mlp_momentum.state.npz")});
  EXPECT_EQ(state.code, 128);
  EXPECT_NE(state.err.find("'state1/dense1/bias' is not a state variable"), std::string::npos)
      << state.err;
  const Outcome batch = twinrun(
      folder, {"diagnose", "--program", program, "--batch", jax_step("cnn_max_pool.batch.npz")});
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
