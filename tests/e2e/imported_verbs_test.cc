// Tests `--program` of every verb that takes a scenario: training steps that JAX exported are
// trained, recorded, compared, bisected, packed, drilled, and run on engines of other processes.
#include <algorithm>
#include <sstream>

#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

const std::string kStep = jax_step("mlp_momentum.hlo");
const std::string kOp = "dense2/dot_general.grad@make_fixtures.py:38";  // a product of its gradient
const std::string kFault = "drop_k_tail@" + kOp + ",from=2";
// Batches of the same shapes, drawn from another seed.
const std::string kOther = jax_step("mlp_sgd.batch.npz");

std::string served_engine(const std::string& engine, const std::string& fault = "") {
  return std::string("exec:'") + TWINRUN_DEV + "' serve --engine " + engine +
         (fault.empty() ? "" : " --fault '" + fault + "'");
}

class ImportedVerbs : public testing::Test {
 protected:
  Outcome run(const Words& words) { return twinrun(folder_, words); }
  nlohmann::json json(const Words& words, int code = 0) {
    const Outcome o = run(with(words, {"--json", "-q"}));
    EXPECT_EQ(o.code, code) << o.out.substr(0, 2000) << o.err;
    return nlohmann::json::parse(o.out, nullptr, false);
  }
  nlohmann::json train(const std::string& file, const Words& more = {}) {
    return json(with({"train", "--program", kStep, "-o", file}, more));
  }
  // The program's files in a folder of the test, as step.hlo and what belongs to it.
  void copy_step(const std::string& name) {
    for (const char* ending : {".hlo", ".json", ".state.npz", ".batch.npz"})
      fs::copy_file(jax_step(name + ending), folder_ / (std::string("step") + ending));
  }
  Folder folder_;
};

TEST_F(ImportedVerbs, TrainResumesWithTheSameBitsAndNoOtherBatches) {
  const auto whole = train("whole.h5");
  train("half.h5", {"--set", "train.steps=2"});
  const Words resume = {"train", "--program", kStep, "--resume", "half.h5", "-o", "rest.h5"};
  EXPECT_EQ(json(resume)["state_digest"], whole["state_digest"]);
  EXPECT_EQ(whole["steps"], 4);
  EXPECT_TRUE(whole["eval_loss"].is_null());
  const Outcome other = run(with(resume, {"--batch", kOther}));
  EXPECT_EQ(other.code, 128);
  EXPECT_TRUE(other.says("the batches: ")) << other.err;
  const Outcome cores = run({"train", "--program", kStep, "--cores", "2"});
  EXPECT_EQ(cores.code, 128);
  EXPECT_TRUE(cores.says("an imported program runs on one core")) << cores.err;
}

// The held-out loss is the mean of what a step from that state gives on each held-out batch. A run
// of one step on these batches gives one of them, which one its seed decides.
TEST_F(ImportedVerbs, HeldOutLossIsThatOfTheStepsProgram) {
  const auto trained = train("a.h5", {"--set", "train.steps=3", "--held-out", kOther});
  std::set<double> losses;
  for (int seed = 0; seed < 24 && losses.size() < 4; ++seed)
    losses.insert(train("b.h5", {"--state", "a.h5", "--batch", kOther, "--set", "train.steps=1",
                                 "--set", "seed=" + std::to_string(seed)})["last_loss"]
                      .get<double>());
  ASSERT_EQ(losses.size(), 4u) << "the seed does not change the order of the batches";
  double mean = 0;
  for (const double loss : losses) mean += loss / 4;
  // Four sums of doubles in another order: half a unit in the last place each.
  EXPECT_NEAR(trained["eval_loss"].get<double>(), mean, 4 * 0x1p-53 * mean);
  EXPECT_TRUE(trained["eval_accuracy"].is_null());
}

TEST_F(ImportedVerbs, HeldOutBatchesLetTheEffectBeJudged) {
  const Words all = {"diagnose", "--program", kStep, "-o", "out", "--set", "train.steps=12"};
  const auto without = json(all);
  EXPECT_TRUE(without["trajectories"].empty());
  const auto judged = json(with(all, {"--held-out", kOther, "--set", "diagnose.margin=0.5"}));
  ASSERT_FALSE(judged["trajectories"].empty());
  EXPECT_GE(judged["trajectories"][0]["differences"].size(), 3u);
  EXPECT_EQ(judged["verdict"]["class"], "NOISE") << judged["verdict"];
  EXPECT_EQ(judged["runs"][0]["eval_accuracy"], nullptr);
  EXPECT_FALSE(judged["runs"][0]["eval_loss"].is_null());
}

TEST_F(ImportedVerbs, VerifyFindsAChangeAndRefusesAnotherProgram) {
  copy_step("mlp_momentum");
  ASSERT_EQ(run({"record", "--program", "step.hlo", "-e", "tpu", "-o", "g.golden.h5", "-q"}).code,
            0);
  const Words verify = {"verify", "g.golden.h5", "-q"};
  const Outcome same = run(verify);
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_TRUE(same.prints("The same bits")) << same.out;
  const Outcome moved = run(with(verify, {"--fault", kFault}));
  EXPECT_EQ(moved.code, 1);
  EXPECT_TRUE(moved.prints("step 2")) << moved.out;

  const Outcome another = run(with(verify, {"--program", jax_step("mlp_sgd.hlo")}));
  EXPECT_EQ(another.code, 128);
  EXPECT_TRUE(another.prints("the program:")) << another.out;
  EXPECT_TRUE(another.prints("recorded:")) << another.out;
  const Outcome batches = run(with(verify, {"--program", kStep, "--batch", kOther}));
  EXPECT_EQ(batches.code, 128);
  EXPECT_TRUE(batches.prints("the batches:")) << batches.out;
  EXPECT_FALSE(batches.prints("the program:")) << batches.out;
  // The file has changed in its place.
  fs::copy_file(jax_step("mlp_sgd.hlo"), folder_ / "step.hlo",
                fs::copy_options::overwrite_existing);
  EXPECT_EQ(run(verify).code, 128);
  fs::remove(folder_ / "step.hlo");
  const Outcome gone = run(verify);
  EXPECT_EQ(gone.code, 128);
  EXPECT_TRUE(gone.prints("step.hlo")) << gone.out;
  EXPECT_EQ(run(with(verify, {"--program", kStep})).code, 0);
  ASSERT_EQ(run({"record", "drill_mlp", "-o", "s.golden.h5", "-q"}).code, 0);
  const Outcome scenario = run({"verify", "s.golden.h5", "--program", kStep});
  EXPECT_TRUE(scenario.prints("not of an imported program")) << scenario.out;
}

TEST_F(ImportedVerbs, CompareNeedsHeldOutBatches) {
  const Words compare = {"compare", "--program", kStep, "--seeds", "8", "--set", "train.steps=12"};
  const Outcome none = run(compare);
  EXPECT_EQ(none.code, 128);
  EXPECT_TRUE(none.says("--held-out")) << none.err;
  const Words with_batches = with(compare, {"--held-out", kOther});
  EXPECT_EQ(json(with_batches)["outcome"], "identical");
  const auto wrong = json(
      with(with_batches, {"--b-fault", "scale@" + kOp + ",magnitude=30", "--margin", "1e-4"}), 1);
  EXPECT_EQ(wrong["outcome"], "differs");
  const Outcome accuracy = run(with(with_batches, {"--metric", "accuracy"}));
  EXPECT_EQ(accuracy.code, 128);
  EXPECT_TRUE(accuracy.says("no accuracy")) << accuracy.err;
}

TEST_F(ImportedVerbs, InspectShowsParametersOpsAndDigests) {
  const Outcome all = run({"inspect", "--program", kStep});
  EXPECT_EQ(all.code, 0) << all.err;
  EXPECT_TRUE(all.prints("state1/dense1/kernel")) << all.out;
  EXPECT_TRUE(all.prints("4 batches")) << all.out;
  const Outcome ops = run({"inspect", "--program", kStep, "--ops"});
  EXPECT_TRUE(ops.prints(kOp)) << ops.out;
  EXPECT_TRUE(run({"inspect", "--program", kStep, "--resolved"}).prints("[program]"));
  EXPECT_TRUE(run({"inspect", "digits_mlp", "--ops"}).prints("dense1/dot_general"));
  // What the flag --program once meant.
  for (const Words& old : {Words{"digits_mlp", "--program"}, Words{"--program", "digits_mlp"}}) {
    const Outcome o = run(with({"inspect"}, old));
    EXPECT_EQ(o.code, 128);
    EXPECT_TRUE(o.says("twinrun inspect SCENARIO --ops")) << o.err;
  }
}

TEST_F(ImportedVerbs, BisectNamesTheStepAndTheOp) {
  const Words engines = {"--program", kStep, "--a", "tpu", "--b", "tpu", "--fault", kFault};
  EXPECT_EQ(json(with({"bisect", "step"}, engines))["step"], 2);
  const auto op = json(with({"bisect", "op"}, engines));
  EXPECT_EQ(op["step"], 2);
  EXPECT_EQ(op["op"], kOp);
  EXPECT_EQ(op["inputs_agree"], true);

  // Against a run on file, whose program is found where it was, and no other is taken for it.
  train("wrong.h5", {"-e", "tpu", "--fault", kFault});
  const Words from_file = {"bisect", "step", "wrong.h5", "--b", "tpu"};
  EXPECT_EQ(json(from_file)["step"], 2);
  const Outcome other = run(with(from_file, {"--program", jax_step("mlp_sgd.hlo")}));
  EXPECT_EQ(other.code, 128);
  EXPECT_TRUE(other.says("the program: ")) << other.err;
  // Two runs, the second of another program.
  EXPECT_EQ(run({"train", "--program", jax_step("mlp_sgd.hlo"), "-o", "sgd.h5", "-q"}).code, 0);
  EXPECT_TRUE(run({"bisect", "step", "wrong.h5", "sgd.h5"}).prints("the program: "));
}

TEST_F(ImportedVerbs, BisectRevFindsTheCommitOfAnEngine) {
  const auto shell = [&](const std::string& command) {
    return std::system(("cd '" + folder_.path() + "' && " + command + " > log 2>&1").c_str());
  };
  if (shell("git --version") != 0) GTEST_SKIP() << "no git here";
  const auto engine = [](const std::string& more) {
    return std::string("exec '") + TWINRUN_DEV + "' serve --engine tpu" + more + " \"$@\"\n";
  };
  write_text(folder_ / "good.sh", engine(""));
  write_text(folder_ / "bad.sh", engine(" --fault 'scale@*dot_general*,magnitude=1.5'"));
  ASSERT_EQ(shell("git init -q -b main repo && cd repo && git config user.name T && git config "
                  "user.email t@example.org && for i in 1 2 3 4 5 6; do if [ $i -ge 4 ]; then cp "
                  "../bad.sh engine.sh; else cp ../good.sh engine.sh; fi; echo $i > version && git "
                  "add -A && git commit -q -m \"commit $i\" || exit 1; done"),
            0)
      << read_text(folder_ / "log");
  const Outcome o =
      run({"bisect",       "rev",      "--repo",    "repo",      "--good",
           "main~5",       "--bad",    "main",      "--repeats", "1",
           "-o",           "out",      "--json",    "-q",        "--",
           TWINRUN_BINARY, "diagnose", "--program", kStep,       "--quick",
           "-q",           "-o",       "results",   "--subject", "exec:sh engine.sh"});
  EXPECT_EQ(o.code, 0) << o.out << o.err;
  const auto found = nlohmann::json::parse(o.out, nullptr, false);
  EXPECT_EQ(found["end"], "found");
  EXPECT_EQ(found["first_bad"]["subject"], "commit 4");
  EXPECT_EQ(found["last_good"]["subject"], "commit 3");
}

TEST_F(ImportedVerbs, ABundleIsReproducedElsewhereWithoutTheFiles) {
  copy_step("mlp_momentum");
  const Words diagnose = {"diagnose", "--program", "step.hlo", "--quick", "-q",
                          "-o",       "out",       "--fault",  kFault};
  ASSERT_EQ(run(diagnose).code, 20);
  const auto made = json({"bundle", "out", "-o", "fault.zip"});
  const auto& members = made["members"];
  for (const char* name : {"step.txt", "step.json", "step.state.safetensors",
                           "step.batch.safetensors", "init.h5", "before.h5"})
    EXPECT_NE(std::find(members.begin(), members.end(), name), members.end()) << name;
  const Outcome secret = run({"bundle", "out", "--anonymise"});
  EXPECT_EQ(secret.code, 128);
  EXPECT_TRUE(secret.says("cannot be anonymised")) << secret.err;

  const Folder elsewhere;
  fs::copy_file(folder_ / "fault.zip", elsewhere / "fault.zip");
  for (const char* ending : {".hlo", ".json", ".state.npz", ".batch.npz"})
    fs::remove(folder_ / (std::string("step") + ending));
  const Outcome again = twinrun(elsewhere, {"replay", "fault.zip", "-q"});
  EXPECT_EQ(again.code, 0) << again.out << again.err;
  EXPECT_TRUE(again.prints("op " + kOp + ", step 2")) << again.out;
  EXPECT_TRUE(again.prints("reproduced: ")) << again.out;
  // The bundle does not need the files, but making one does.
  EXPECT_EQ(run({"bundle", "out", "-o", "second.zip", "-q"}).code, 128);
  const Outcome other =
      run({"bundle", "out", "-o", "second.zip", "-q", "--program", jax_step("mlp_sgd.hlo")});
  EXPECT_EQ(other.code, 128);
  EXPECT_TRUE(other.says("the program: ")) << other.err;
}

TEST_F(ImportedVerbs, ADrillPlantsFaultsInTheOpsOfTheProgram) {
  const Outcome o = run({"drill", "--program", kStep, "--level", "A", "--only", "bit_flip",
                         "--cases", "40", "-q", "-o", "d"});
  // Exit code 1: with so few cases, one fault that is found a step late misses a target.
  EXPECT_LE(o.code, 1) << o.out << o.err;
  const std::string ops = run({"inspect", "--program", kStep, "--ops"}).out;
  std::istringstream lines(read_text(folder_ / "d/cases.jsonl"));
  int planted = 0, named = 0;
  for (std::string line; std::getline(lines, line);) {
    const auto record = json_of(line);
    const std::string op = record["injected"]["op"];
    EXPECT_NE(ops.find(op), std::string::npos) << op;
    if (!record["truth"]["outside"]) continue;
    ++planted;
    named += record["findings"][0]["op"] == op ? 1 : 0;
  }
  EXPECT_GT(planted, 0);
  EXPECT_EQ(named, planted);
  const Outcome sharding = run({"drill", "--program", kStep, "--case", "hidden.mlp_momentum.1.0"});
  EXPECT_FALSE(sharding.prints("1 of 1")) << sharding.out;
}

TEST_F(ImportedVerbs, AnEngineOfAnotherProcessGetsTheText) {
  for (const char* engine : {"cpu", "tpu"})
    EXPECT_EQ(train("s.h5", {"-e", served_engine(engine)})["state_digest"],
              train("o.h5", {"-e", engine})["state_digest"])
        << engine;
  const Words diagnose = {"diagnose", "--program", kStep, "-o", "out", "--subject"};
  const auto right = json(with(diagnose, {served_engine("tpu")}));
  EXPECT_EQ(right["verdict"]["class"], "NOISE");
  EXPECT_EQ(right["findings"][0]["level"], "C");
  const auto wrong =
      json(with(diagnose, {served_engine("tpu", "scale@*dot_general*,from=2,magnitude=1.5")}), 20);
  EXPECT_EQ(wrong["verdict"]["class"], "ENGINE_BUG");
  EXPECT_EQ(wrong["findings"][0]["step"], 2);
}

TEST_F(ImportedVerbs, AnEngineThatKnowsScenariosOnlySaysSo) {
  write_text(folder_ / "engine.sh",
             "read line\necho '{\"hello\":{\"protocol\":1,\"name\":\"plain\",\"version\":\"1\"}}'\n"
             "read line\n");
  const Outcome o = run({"train", "--program", kStep, "-e", "exec:sh engine.sh"});
  EXPECT_EQ(o.code, 125);
  EXPECT_TRUE(o.says("runs scenarios only, not imported programs")) << o.err;
}

TEST_F(ImportedVerbs, ExportAndProfileTakeIt) {
  EXPECT_EQ(run({"convert", "text", "--program", kStep, "--to", "stablehlo"}).code, 0);
  const Words one = {"--set", "train.steps=1"};
  const auto again = json(with({"train", "--program", "text/step.mlir", "-o", "e.h5"}, one));
  EXPECT_EQ(again["last_loss"], train("t.h5", one)["last_loss"]);
  const Outcome profile = run({"profile", "--program", kStep});
  EXPECT_EQ(profile.code, 0) << profile.err;
  EXPECT_TRUE(profile.prints("dense2")) << profile.out;
}

TEST_F(ImportedVerbs, WhatIsMissingIsSaid) {
  for (const char* verb : {"train", "record", "compare", "profile", "convert"}) {
    const Words form =
        std::string(verb) == "convert" ? Words{verb, "--to", "stablehlo"} : Words{verb};
    const Outcome none = run(form);
    EXPECT_EQ(none.code, 128) << verb;
    EXPECT_TRUE(none.says("neither a scenario nor a program")) << verb << none.err;
    const Outcome both = run(with(form, {"drill_mlp", "--program", kStep}));
    EXPECT_TRUE(both.says("both a scenario, 'drill_mlp', and --program")) << verb << both.err;
    const Outcome state = run(with(form, {"drill_mlp", "--state", "x.npz"}));
    EXPECT_TRUE(state.says("applies only to an imported program")) << verb << state.err;
  }
}

}  // namespace
}  // namespace twinrun::e2e
