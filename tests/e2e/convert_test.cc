// Tests `twinrun convert`: from files of Keras, safetensors and NumPy to a checkpoint that trains,
// and back.
#include <algorithm>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

std::string fixture(const std::string& name) {
  return TWINRUN_SOURCE_DIR "/tests/checkpoints/fixtures/" + name;
}
std::string small() { return fixture("small.toml"); }

// The root_digest of the checkpoint that `twinrun convert` makes from a file.
std::string digest_of(const Folder& folder, const std::string& file, const Words& more = {}) {
  const Outcome o =
      twinrun(folder, with({"convert", file, "c.h5", "--scenario", small(), "--json", "-q"}, more));
  EXPECT_EQ(o.code, 0) << file << "\n" << o.err;
  EXPECT_EQ(o.err, "");
  return o.code == 0 ? json_of(o.out)["root_digest"].get<std::string>() : "";
}

TEST(Convert, EveryFormatOfOneModelIsOneCheckpoint) {
  const Folder folder;
  const std::string expected = digest_of(folder, fixture("keras3.weights.h5"));
  for (const char* name : {"keras2_weights.h5", "keras2_whole.h5", "keras3_legacy_whole.h5",
                           "keras3_unnamed.weights.h5"}) {
    EXPECT_EQ(digest_of(folder, fixture(name)), expected) << name;
  }
  EXPECT_EQ(
      digest_of(folder, fixture("torch_names.safetensors"), {"--map", fixture("torch_names.toml")}),
      expected);
  // This file also has Adam's state and the step, which are part of the digest.
  EXPECT_NE(digest_of(folder, fixture("keras3_adam.keras")), expected);
}

TEST(Convert, WhatItMakesTrains) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"convert", fixture("keras3.weights.h5"), "init.h5",
                                     "--scenario", small(), "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["from"], "keras3");
  EXPECT_EQ(j["to"], "twinrun");
  EXPECT_EQ(j["step"], 0);
  EXPECT_EQ(j["tensors"].size(), 8u);
  EXPECT_EQ(j["tensors"][0]["ours"], "conv1/kernel");
  EXPECT_EQ(j["tensors"][0]["theirs"], "layers/conv2d/vars/0");
  EXPECT_EQ(j["initial"].size(), 14u);
  EXPECT_TRUE(o.says("initial values, not in the file: adam/beta1_power")) << o.err;

  const Outcome init =
      twinrun(folder, {"train", small(), "--init", "init.h5", "-o", "a.h5", "--json"});
  ASSERT_EQ(init.code, 0) << init.err;
  const Outcome resume =
      twinrun(folder, {"train", small(), "--resume", "init.h5", "-o", "b.h5", "--json"});
  ASSERT_EQ(resume.code, 0) << resume.err;
  EXPECT_EQ(json_of(init.out)["state_digest"], json_of(resume.out)["state_digest"]);
  const Outcome seeded = twinrun(folder, {"train", small(), "-o", "s.h5", "--json"});
  EXPECT_NE(json_of(init.out)["state_digest"], json_of(seeded.out)["state_digest"]);

  // With Adam's state from Keras, training continues at Keras's step.
  const Outcome adam = twinrun(folder, {"convert", fixture("keras3_adam.keras"), "adam.h5",
                                        "--scenario", small(), "--json"});
  ASSERT_EQ(adam.code, 0) << adam.err;
  EXPECT_EQ(json_of(adam.out)["step"], 5);
  EXPECT_EQ(
      twinrun(folder, {"train", small(), "--set", "train.steps=7", "--resume", "adam.h5"}).code, 0);
}

TEST(Convert, OtherLayersThatKerasHas) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"convert", fixture("keras3_layers.weights.h5"), "c.h5",
                                     "--scenario", fixture("layers.toml"), "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  const auto j = json_of(o.out);
  EXPECT_EQ(j["tensors"].size(), 12u);
  EXPECT_EQ(j["tensors"][2]["change"], "reshaped [3,3,1,4]");
  EXPECT_EQ(j["initial"].size(), 0u);
  ASSERT_EQ(twinrun(folder, {"convert", "c.h5", "k.weights.h5", "-q"}).code, 0);
  const Outcome again = twinrun(
      folder, {"convert", "k.weights.h5", "d.h5", "--scenario", fixture("layers.toml"), "--json"});
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json_of(again.out)["root_digest"], j["root_digest"]);
}

TEST(Convert, ARunGoesOutAndComesBack) {
  const Folder folder;
  const Outcome trained = twinrun(folder, {"train", small(), "-o", "run.h5", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  const std::string state = json_of(trained.out)["state_digest"];
  for (const char* name : {"w.npz", "w.safetensors"}) {
    ASSERT_EQ(twinrun(folder, {"convert", "run.h5", name}).code, 0) << name;
    EXPECT_EQ(digest_of(folder, name, {"--step", "3"}), state) << name;
  }
  EXPECT_EQ(digest_of(folder, "w.safetensors"), state) << "its metadata say the step";
  EXPECT_NE(digest_of(folder, "w.npz"), state) << "step 0";
  // With a map: to PyTorch's names and layouts, and back.
  const Words map = {"--map", fixture("torch_names.toml")};
  ASSERT_EQ(twinrun(folder, with({"convert", "run.h5", "t.safetensors"}, map)).code, 0);
  EXPECT_EQ(digest_of(folder, "t.safetensors", map), state);
  // Keras's files receive the weights only.
  const Outcome keras = twinrun(folder, {"convert", "run.h5", "k.weights.h5"});
  ASSERT_EQ(keras.code, 0);
  EXPECT_TRUE(keras.says("not converted: 14 tensors of the optimizer")) << keras.err;
  const Outcome legacy = twinrun(folder, {"convert", "run.h5", "k.h5", "--to", "keras_h5", "-q"});
  ASSERT_EQ(legacy.code, 0);
  EXPECT_EQ(legacy.err, "");
  EXPECT_EQ(digest_of(folder, "k.weights.h5"), digest_of(folder, "k.h5"));
  // Equal content gives equal bytes.
  for (const char* name : {"w.npz", "w.safetensors", "k.weights.h5"}) {
    const std::string before = read_text(folder / name);
    ASSERT_EQ(twinrun(folder, {"convert", "run.h5", name}).code, 0);
    EXPECT_EQ(read_text(folder / name), before) << name;
  }
  // The run's last checkpoint alone; then a conversion between two formats that needs no model.
  const Outcome own = twinrun(folder, {"convert", "run.h5", "own.h5", "--to", "twinrun", "--json"});
  ASSERT_EQ(own.code, 0) << own.err;
  EXPECT_EQ(json_of(own.out)["root_digest"], state);
  const Outcome types = twinrun(folder, {"convert", fixture("types.safetensors"), "types.npz"});
  ASSERT_EQ(types.code, 0) << types.err;
  EXPECT_TRUE(types.prints("bfloat16 to float32, exact")) << types.out;
}

TEST(Convert, WhatIsWrongIsTold) {
  const Folder folder;
  write_text(folder / "text", "no weights");
  write_text(folder / "map.toml", "\"conv1/kernal\" = \"x\"\n");
  write_text(folder / "cut.h5", read_text(fixture("keras3.weights.h5")).substr(0, 9000));
  write_text(folder / "old.h5", "what was there");
  fs::copy_file(fixture("keras2_weights.h5"), folder / "k.h5");
  ASSERT_EQ(twinrun(folder, {"train", small(), "--snapshot", "-o", "ours.h5"}).code, 0);
  const auto before = folder.entries();
  const auto refused = [&](const Words& words, const std::string& part) {
    const Outcome o = twinrun(folder, with({"convert"}, words));
    EXPECT_EQ(o.code, 128) << o.err;
    EXPECT_EQ(o.out, "");
    EXPECT_TRUE(o.says(part)) << part << "\nin\n" << o.err;
    EXPECT_TRUE(o.says("fix:")) << o.err;
    EXPECT_EQ(folder.entries(), before);
    EXPECT_EQ(read_text(folder / "old.h5"), "what was there");
  };
  const Words model = {"--scenario", small()};
  refused({"k.h5"}, "OUT");
  refused({"nothing.h5", "old.h5"}, "No such file");
  refused(with({"text", "old.h5"}, model), "not a weights file of a known format");
  refused(with({"cut.h5", "old.h5"}, model), "cut.h5");
  refused({"k.h5", "old.h5"}, "add --scenario");
  refused({"k.h5", "new.weights.h5"}, "add --scenario");
  refused({"ours.h5", "old.h5"}, "use --to keras_h5");
  refused({"ours.h5", "new.keras"}, "the format cannot be determined");
  refused({"ours.h5", "new.npz", "--to", "nzp"}, "unknown value 'nzp'");
  refused({"ours.h5", "old.h5/new.npz"}, "a folder that you may write to");
  refused({"ours.h5", "ours.h5", "--to", "twinrun"}, "is both IN and OUT");
  refused({"ours.h5", "new.npy"}, "write .npz");
  refused(with({"k.h5", "old.h5", "--map", "map.toml"}, model), "did you mean 'conv1/kernel'?");
  refused({"k.h5", "new.npz", "--map", "map.toml"}, "add --scenario");
  refused({"k.h5", "old.h5", "--set", "train.steps=1"}, "there is no scenario to override");
  refused(with({"k.h5", "old.h5", "--step", "-1"}, model), "below 0");
  refused({"k.h5", "old.h5", "--scenario", "digits_mlp"}, "cannot be matched by position");
}

TEST(Convert, AStepLeavesTextArgumentsAndResults) {
  const Folder folder;
  const Outcome r = twinrun(folder, {"convert", "drill_dropout", "out", "--to", "stablehlo",
                                     "--cores", "4", "--values", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(json_of(r.out)["files"].size(), 4u);
  const auto step = nlohmann::json::parse(read_text(folder / "out/step.json"));
  EXPECT_EQ(step["cores"], 4);
  EXPECT_EQ(step["arguments"].size(), json_of(r.out)["arguments"]);
  EXPECT_EQ(step["results"].size(), json_of(r.out)["results"]);
  EXPECT_NE(read_text(folder / "out/step.mlir").find("mhlo.num_replicas = 4"), std::string::npos);
  EXPECT_EQ(twinrun(folder, {"convert", "drill_mlp"}).code, 128);
}

}  // namespace
}  // namespace twinrun::e2e
