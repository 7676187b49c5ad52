// Tests `twinrun train`, `snapshot`, `diff` and `inspect` through the binary.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

const Words kTiny = {"--set", "train.steps=6", "--set", "data.train=128",
                     "--set", "data.eval=32",  "-q"};

nlohmann::json train(const Folder& folder, const Words& more) {
  const Outcome o = twinrun(folder, with(with({"train", "digits_mlp", "--json"}, kTiny), more));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(o.err, "");
  return json_of(o.out);
}

TEST(Train, JsonNamesFileEngineAndDigests) {
  const Folder folder;
  const auto j = train(folder, {"-o", "run.h5"});
  EXPECT_EQ(j["schema"], 1);
  EXPECT_EQ(j["file"], "run.h5");
  EXPECT_EQ(j["engine"], "cpu");
  EXPECT_EQ(j["cores"], 1);
  EXPECT_EQ(j["steps"], 6);
  EXPECT_EQ(j["ended"], "completed");
  const auto inspected = json_of(twinrun(folder, {"inspect", "run.h5", "--json"}).out);
  EXPECT_EQ(inspected["root_digest"], j["root_digest"]);
  EXPECT_EQ(inspected["checkpoints"].back()["root_digest"], j["state_digest"]);
  EXPECT_EQ(inspected["evaluations"].back()["loss"], j["eval_loss"]);
}

// Copies that a launcher starts would overwrite each other's files.
TEST(Train, OneOfSeveralRanksAloneIsRefused) {
  const Folder folder;
  EXPECT_EQ(twinrun(folder, {"--version"}, {{"PMI_SIZE", "1"}}).code, 0);
  const Outcome o = twinrun(folder, {"train", "digits_mlp"}, {{"PMI_SIZE", "2"}});
  EXPECT_EQ(o.code, 125) << o.err;
  EXPECT_NE(o.err.find("TWINRUN_MPI=ON"), std::string::npos) << o.err;
}

TEST(Train, AwkwardPathsStayJson) {
  const Folder folder;
  const auto j = train(folder, {"-o", "a \"quoted\\name\".h5"});
  EXPECT_EQ(j["file"], "a \"quoted\\name\".h5");
  const Outcome o =
      twinrun(folder, {"train", "digits_mlp", "--snapshot", "--json", "-o", "b\"c.h5"});
  EXPECT_EQ(json_of(o.out)["file"], "b\"c.h5");
}

TEST(Train, EnginesAndCores) {
  const Folder folder;
  const auto tpu = train(folder, {"--engine", "tpu", "-o", "t.h5"});
  EXPECT_EQ(tpu["cores"], 8);  // the default, tpu.cores
  EXPECT_EQ(train(folder, {"--engine", "tpu", "--cores", "2", "-o", "t2.h5"})["cores"], 2);
  EXPECT_EQ(train(folder, {"--cores", "8", "-o", "s.h5"})["cores"], 8);
  EXPECT_EQ(train(folder, {"--engine", "cpu:f64", "-o", "f64.h5"})["engine"], "cpu:f64");
}

// Where gradients are not reduced, each core has weights of its own: `inspect` shows each, and
// `export --tensors` writes each.
TEST(Train, CoresThatDifferAreShownAndExported) {
  const Folder folder;
  train(folder, {"--cores", "4", "--set", "tpu.reduction=none", "--set", "train.checkpoint_every=2",
                 "-o", "t.h5"});
  const auto shown = json_of(twinrun(folder, {"inspect", "t.h5", "--json"}).out);
  ASSERT_EQ(shown["replicas"].size(), 4U);
  EXPECT_EQ(shown["replicas"][0]["distance"], 0.0);
  for (size_t core = 1; core < 4; ++core) {
    const auto& row = shown["replicas"][core];
    EXPECT_EQ(row["core"], core);
    EXPECT_GT(row["distance"], 0.0);
    EXPECT_NE(row["digest"], shown["replicas"][0]["digest"]);
    EXPECT_GT(row["tensors"]["dense1/kernel"]["distance"], 0.0);
  }
  const Outcome people = twinrun(folder, {"inspect", "t.h5"});
  EXPECT_TRUE(people.prints("after 4 steps cores differ in 4 of 4 tensors")) << people.out;
  EXPECT_TRUE(people.prints("  core 3 ")) << people.out;

  const Outcome o = twinrun(folder, {"convert", "t.h5", "out", "--to", "tensors", "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json_of(o.out)["tensors"], 4);
  const auto state = nlohmann::json::parse(read_text(folder / "out/state.json"));
  EXPECT_EQ(state["replicas"], shown["replicas"]);
  EXPECT_EQ(state["cores"], 4);
  EXPECT_EQ(state["step"], 4) << "after the last step all cores get core 0's variables";
  // The header of a safetensors file is JSON after eight bytes of its size.
  const std::string file = read_text(folder / "out/state.safetensors");
  for (const char* name : {"dense1/kernel@0", "dense1/kernel@3", "dense2/bias@2"})
    EXPECT_NE(file.find("\"" + std::string(name) + "\":"), std::string::npos) << name;
  EXPECT_EQ(file.find("\"dense1/kernel\":"), std::string::npos);

  train(folder, {"--cores", "4", "-o", "same.h5"});
  EXPECT_EQ(json_of(twinrun(folder, {"inspect", "same.h5", "--json"}).out)["replicas"].size(), 0U);
  EXPECT_TRUE(
      twinrun(folder, {"convert", "same.h5", "--to", "tensors"}).prints("the same on all cores"));
  const std::string same = read_text(folder / "same-state/state.safetensors");
  EXPECT_NE(same.find("\"dense1/kernel\":"), std::string::npos);
  EXPECT_EQ(same.find("@0\":"), std::string::npos);
  EXPECT_EQ(twinrun(folder, {"convert", "none.h5", "--to", "tensors"}).code, 128);
}

// How samples are cached, decoded and read ahead changes no bit of the run. A note says whether the
// cache was used.
TEST(Train, TheInputPipelineChangesNoBit) {
  const Folder folder;
  const Words tpu = {"--engine", "tpu", "--cores", "2", "-o", "run.h5"};
  const std::string expected = train(folder, tpu)["root_digest"];
  for (const Words& how : {Words{"--set", "data.cache=none"},
                           Words{"--set", "data.cache=none", "--set", "data.parallel_calls=3",
                                 "--set", "data.prefetch=0"},
                           Words{"--set", "data.cache=./kept", "--set", "data.parallel_calls=2"},
                           Words{"--set", "data.cache=./kept"}}) {
    EXPECT_EQ(train(folder, with(tpu, how))["root_digest"], expected) << how[1];
  }
  Words loud = with({"train", "digits_mlp"}, kTiny);
  loud.pop_back();  // -q
  loud = with(loud, {"--set", "data.cache=./kept", "--set", "train.eval_every=4", "--set",
                     "tpu.iterations_per_loop=3"});
  const Outcome o = twinrun(folder, with(loud, tpu));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.says("note: data.cache: samples read from ./kept")) << o.err;
  EXPECT_TRUE(o.says("note: loops of 3 steps (tpu.iterations_per_loop)")) << o.err;
  write_text(folder / "kept", "no cache");
  const Outcome refused = twinrun(folder, with(loud, tpu));
  EXPECT_EQ(refused.code, 128) << refused.err;
  EXPECT_TRUE(refused.says("./kept: data.cache names a file that is not a cache of samples"))
      << refused.err;
  EXPECT_EQ(read_text(folder / "kept"), "no cache");
}

TEST(Train, DivergenceEndsWithOneAndStaysJson) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"train", "litmus_nan", "--json", "-q", "-o", "run.h5"});
  EXPECT_EQ(o.code, 1);
  EXPECT_TRUE(o.says("first produces")) << o.err;
  EXPECT_TRUE(o.says("lower optimizer.lr")) << o.err;
  const auto j = json_of(o.out);  // "nan" is not JSON
  EXPECT_LT(j["steps"], 50);
  EXPECT_TRUE(fs::exists(folder / "run.h5"));
}

// The name of the checkpoints' file is too long, that of the run is not: as on a disk that is full
// for a while, only the checkpoints are lost.
TEST(Train, ACheckpointThatCannotBeWrittenIsAWarning) {
  const Folder folder;
  const std::string run = std::string(245, 'r') + ".h5";
  const Outcome o = twinrun(folder, {"train", "litmus_nan", "-o", run, "--set", "train.steps=4",
                                     "--set", "train.checkpoint_every=2"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.says("the next checkpoint is tried again")) << o.err;
  EXPECT_EQ(folder.entries(), std::set<std::string>{run});
}

TEST(Train, DataThatEndsIsOne) {
  const Folder folder;
  const Outcome o =
      twinrun(folder, {"train", "digits_mlp", "--set", "data.repeat=false", "-q", "-o", "run.h5"});
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_TRUE(o.says("set data.repeat = true")) << o.err;
  EXPECT_TRUE(folder.entries().empty());
}

TEST(Train, AFaultChangesTheRunAndSaysSo) {
  const Folder folder;
  const auto clean = train(folder, {"-o", "clean.h5"});
  const Outcome o =
      twinrun(folder, with(with({"train", "digits_mlp"}, kTiny),
                           {"--fault", "scale@dense2/kernel.grad,step=2", "-o", "faulty.h5"}));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.prints("faults changed bits 1 times, first in dense2/kernel.grad at step 2"))
      << o.out;
  const Outcome diff = twinrun(folder, {"diff", "clean.h5", "faulty.h5", "--json"});
  EXPECT_EQ(diff.code, 1);
  const auto j = json_of(diff.out);
  EXPECT_EQ(j["same"], false);
  EXPECT_EQ(j["first_step"], 2);
  EXPECT_EQ(j["first_loss"], 3);
  EXPECT_EQ(clean["steps"], 6);
}

TEST(Diff, SameAndDifferent) {
  const Folder folder;
  train(folder, {"-o", "a.h5"});
  train(folder, {"-o", "b.h5", "--threads", "2"});
  train(folder, {"-o", "c.h5", "--engine", "tpu"});
  const Outcome same = twinrun(folder, {"diff", "a.h5", "b.h5"});
  EXPECT_EQ(same.code, 0) << same.out;
  EXPECT_TRUE(same.prints("the same: 4 tensors, bit for bit")) << same.out;
  const Outcome other = twinrun(folder, {"diff", "a.h5", "c.h5"});
  EXPECT_EQ(other.code, 1);
  EXPECT_TRUE(other.prints("states diverge after step 0")) << other.out;
  EXPECT_TRUE(other.prints("4 of 4 tensors differ")) << other.out;
  EXPECT_TRUE(other.prints("dense1/kernel")) << other.out;
  const Outcome json = twinrun(folder, {"diff", "a.h5", "a.h5", "--json"});
  EXPECT_EQ(json_of(json.out)["same"], true);
}

// Infinite distances (another shape, a tensor on one side only) must not break the document.
TEST(Diff, JsonOfDifferentModels) {
  const Folder folder;
  twinrun(folder, {"train", "digits_mlp", "--snapshot", "-o", "a.h5"});
  twinrun(folder, {"train", "litmus_batchnorm_small", "--snapshot", "-o", "b.h5"});
  const Outcome o = twinrun(folder, {"diff", "a.h5", "b.h5", "--json"});
  EXPECT_EQ(o.code, 1);
  EXPECT_EQ(json_of(o.out)["same"], false);
  const Outcome text = twinrun(folder, {"diff", "a.h5", "b.h5"});
  EXPECT_TRUE(text.prints("only in B")) << text.out;
}

TEST(Snapshot, IsTheSeedAndNothingElse) {
  const Folder folder;
  const auto digest = [&](const Words& more) {
    return json_of(
               twinrun(folder,
                       with({"train", "digits_mlp", "--snapshot", "--json", "-o", "i.h5"}, more))
                   .out)["root_digest"]
        .get<std::string>();
  };
  const std::string first = digest({});
  EXPECT_EQ(first.size(), 32u);
  EXPECT_EQ(digest({"--set", "train.steps=5"}), first);
  EXPECT_NE(digest({"--set", "seed=2"}), first);
  EXPECT_EQ(json_of(twinrun(folder, {"inspect", "digits_mlp", "--json"}).out)["root_digest"],
            first);
}

}  // namespace
}  // namespace twinrun::e2e
