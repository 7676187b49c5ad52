// Tests `twinrun check` through the binary: exit codes, text and JSON.
#include "tests/e2e/process.h"
#include "tests/support/wire_bytes.h"

namespace twinrun::e2e {
namespace {

TEST(CheckVerb, ExitCodes) {
  const Folder folder;
  EXPECT_EQ(twinrun(folder, {"check", "digits_cnn"}).code, 0);
  EXPECT_EQ(twinrun(folder, {"check", "digits_cnn", "--fail-on", "warning"}).code, 0);
  EXPECT_EQ(twinrun(folder, {"check", "digits_cnn", "--fail-on", "note"}).code, 1);
  EXPECT_EQ(twinrun(folder, {"check", "resnet20"}).code, 0);
  EXPECT_EQ(twinrun(folder, {"check", "resnet20", "--fail-on", "warning"}).code, 1);
  EXPECT_EQ(twinrun(folder, {"check", "digits_cnn", "--set", "train.batch=100"}).code, 1);
  EXPECT_EQ(twinrun(folder, {"check", "--program", jax_step("mlp_momentum.hlo")}).code, 0);
}

TEST(CheckVerb, UsageIsAnErrorThatSaysWhatToDo) {
  const Folder folder;
  const std::pair<Words, const char*> wrong[] = {
      {{"check"}, "neither a scenario nor a program nor a graph"},
      {{"check", "digits_mlp", "--program", "x.hlo"}, "two of a scenario, a program and a graph"},
      {{"check", "digits_mlp", "--graph", "x.pb"}, "two of a scenario, a program and a graph"},
      {{"check", "--graph", "absent.pb"}, "absent.pb"},
      {{"check", "--graph", "."}, "no saved_model.pb in this folder"},
      {{"check", "--graph", jax_step("mlp_sgd.hlo")}, "not a GraphDef"},
      {{"check", "--graph", "x.pb", "--set", "train.steps=2"}, "a graph has no keys"},
      {{"check", "digits_mpl"}, "digits_mlp"},
      {{"check", "digits_mlp", "--fail-on", "warn"}, "did you mean 'warning'?"},
      {{"check", "digits_mlp", "--generation", "v9"}, "did you mean 'v"},
      {{"check", "digits_mlp", "--set", "train.batches=1"}, "did you mean \"batch\"?"},
      {{"check", "--program", "absent.hlo"}, "absent.hlo"},
      {{"check", "--program", jax_step("mlp_sgd.hlo"), "--set", "train.steps=2"},
       "a program has no keys"},
      {{"check", "digits_mlp", "-o", "out"}, "XProf's graph viewer"},
      {{"check", "--log", "x.log", "--set", "train.steps=2"}, "a log has no keys"},
  };
  for (const auto& [words, says] : wrong) {
    const Outcome o = twinrun(folder, words);
    EXPECT_EQ(o.code, 128) << words.back();
    EXPECT_TRUE(o.says(says)) << o.err;
    EXPECT_EQ(o.out, "");
  }
}

TEST(CheckVerb, TextNamesRulePlaceAndFix) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"check", "digits_cnn", "--set", "train.batch=100"});
  EXPECT_TRUE(o.prints("error batch-not-divisible  --set train.batch")) << o.out;
  EXPECT_TRUE(o.prints("--set train.batch=256 (104 would do for this rule alone)")) << o.out;
  EXPECT_TRUE(o.prints("train batch size 100 must be divisible by number of replicas 8"));
  EXPECT_TRUE(o.prints("1 error, 1 warning, 2 notes")) << o.out;
}

TEST(CheckVerb, Json) {
  const Folder folder;
  const auto j =
      json_of(twinrun(folder, {"check", "resnet20", "--json", "--set", "train.batch=100"}).out);
  EXPECT_EQ(j["schema"], 1);
  EXPECT_EQ(j["name"], "resnet20");
  EXPECT_EQ(j["cores"], 8);
  EXPECT_EQ(j["batch_per_core"], 12);
  EXPECT_EQ(j["errors"], 1);
  ASSERT_GE(j["rules"].size(), 2U);
  const auto& f = j["rules"][0];
  EXPECT_EQ(f["id"], "batch-not-divisible");
  EXPECT_EQ(f["severity"], "error");
  EXPECT_EQ(f["where"], "--set train.batch");
  EXPECT_EQ(f["stack_message"], "train batch size 100 must be divisible by number of replicas 8");
  EXPECT_EQ(f["doc"], "docs/guides/check.md#batch-not-divisible");
  EXPECT_TRUE(j.contains("memory"));
}

// Names in a program text are untrusted: control characters must not reach the terminal.
TEST(CheckVerb, HostileNamesStayOnTheirLine) {
  const Folder folder;
  write_text(
      folder / "x.hlo",
      "HloModule step\nENTRY main {\n  w = f32[8] parameter(0)\n  c = f32[8] custom-call(w), "
      "custom_call_target=\"a\x1b[31m\xff</script>\"\n  loss = f32[] constant(1)\n"
      "  ROOT out = (f32[8], f32[]) tuple(c, loss)\n}\n");
  const Outcome o = twinrun(folder, {"check", "--program", "x.hlo"});
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_EQ(o.out.find('\x1b'), std::string::npos);
  const Outcome json = twinrun(folder, {"check", "--program", "x.hlo", "--json"});
  EXPECT_EQ(json_of(json.out)["rules"][0]["id"], "unsupported-op");
}

// Without a script or a page: how much of the step a TPU can run.
TEST(CheckVerb, SaysHowManyOpsRunOnATpu) {
  const Folder folder;
  const Outcome good = twinrun(folder, {"check", "digits_mlp"});
  EXPECT_TRUE(good.prints("; 76 of 76 ops run on a TPU")) << good.out;
  write_text(folder / "x.hlo",
             "HloModule step\nENTRY main {\n  w = f32[8] parameter(0)\n  c = f16[8] convert(w)\n"
             "  loss = f32[] constant(1)\n  ROOT out = (f16[8], f32[]) tuple(c, loss)\n}\n");
  const Words words = {"check", "--program", "x.hlo"};
  const Outcome bad = twinrun(folder, words);
  EXPECT_EQ(bad.code, 1) << bad.err;
  const auto j = json_of(twinrun(folder, with(words, {"--json"})).out);
  EXPECT_EQ(j["ops"]["count"], 4);
  EXPECT_LT(j["ops"]["on_tpu"], 4);
  EXPECT_TRUE(bad.prints(fmt::format("; {} of 4 ops run on a TPU", j["ops"]["on_tpu"].get<int>())))
      << bad.out;
}

// A graph with an op that no TPU has; its name is of foreign bytes.
const std::string& foreign_graph() {
  using namespace wire;  // NOLINT: the words of the format
  static const std::string bytes_of_graph =
      graph_def({node("net/x", "Placeholder", {}, {type("dtype", "float"), shape("shape", {8, 4})}),
                 node("net/h", "Relu", {"net/x"}, {type("T", "float")}),
                 node("net/y\x1b[31m</script>", "PyFunc", {"net/h"})});
  return bytes_of_graph;
}

TEST(CheckGraph, TextJsonAndExitCodes) {
  const Folder folder;
  write_text(folder / "graph.pb", foreign_graph());
  const Outcome o = twinrun(folder, {"check", "--graph", "graph.pb"});
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_TRUE(o.prints("graph: GraphDef, 3 of 3 nodes are of the step")) << o.out;
  EXPECT_TRUE(o.prints("error unsupported-op  graph.pb: net/y")) << o.out;
  EXPECT_TRUE(o.prints("1 error, 0 warnings, 0 notes; 2 of 3 ops run on a TPU")) << o.out;
  EXPECT_EQ(o.out.find('\x1b'), std::string::npos);
  const auto j = json_of(twinrun(folder, {"check", "--graph", "graph.pb", "--json"}).out);
  EXPECT_EQ(j["graph"]["kind"], "GraphDef");
  EXPECT_EQ(j["graph"]["built_for_tpus"], false);
  EXPECT_EQ(j["errors"], 1);
  EXPECT_EQ(j["rules"][0]["id"], "unsupported-op");
  EXPECT_TRUE(j["memory"].is_null());
  using namespace wire;  // NOLINT: the words of the format
  fs::create_directory(folder / "saved");
  write_text(folder / "saved/saved_model.pb",
             saved_model({meta_graph(graph_def({node("y", "NoOp")}), "y")}));
  const Outcome saved = twinrun(folder, {"check", "--graph", "saved"});
  EXPECT_EQ(saved.code, 0) << saved.err;
  EXPECT_TRUE(saved.prints("saved: SavedModel of TensorFlow 2.19.0, 1 of 1 nodes")) << saved.out;
}

// Our own engines compute what a TPU would refuse; the user is told first.
TEST(CheckFirst, DiagnoseTellsWhatATpuWouldRefuse) {
  const Folder folder;
  const std::string told =
      "A TPU would refuse this (twinrun check, remainder-kept): --set data.drop_remainder: ";
  const Words words = {"diagnose",
                       "digits_mlp",
                       "--quick",
                       "--set",
                       "train.steps=2",
                       "--set",
                       "data.drop_remainder=false",
                       "-o",
                       "out",
                       "--json"};
  const Outcome o = twinrun(folder, words);
  EXPECT_TRUE(o.says(told)) << o.err;
  EXPECT_EQ(json_of(o.out)["notes"][0].get<std::string>().substr(0, told.size()), told);
  const Outcome healthy = twinrun(folder, {"diagnose", "digits_mlp", "--dry-run"});
  EXPECT_EQ(healthy.err.find("would refuse"), std::string::npos) << healthy.err;
  const Outcome elsewhere = twinrun(folder, {"diagnose", "digits_mlp", "--dry-run", "--subject",
                                             "cpu", "--set", "data.drop_remainder=false"});
  EXPECT_EQ(elsewhere.err.find("would refuse"), std::string::npos) << elsewhere.err;
}

constexpr const char* kUneven =
    "ValueError: train batch size 100 must be divisible by number of replicas 8\n";
constexpr const char* kFull =
    "INFO:tensorflow:An error was raised while a session was being created. This may be due to a "
    "preemption\n"
    "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 9.08G of 7.48G hbm. Exceeded "
    "hbm capacity by 1.60G.\n";

TEST(CheckLog, ExitCodes) {
  const Folder folder;
  write_text(folder / "error.log", kUneven);
  write_text(folder / "remark.log", "Some donated buffers were not usable: f32[2,3]\n");
  write_text(folder / "unknown.log", "one\ntwo\nthree\n");
  EXPECT_EQ(twinrun(folder, {"check", "--log", "error.log"}).code, 1);
  EXPECT_EQ(twinrun(folder, {"check", "--log", "remark.log"}).code, 0);
  const Outcome nothing = twinrun(folder, {"check", "--log", "unknown.log"});
  EXPECT_EQ(nothing.code, 0);
  EXPECT_TRUE(nothing.prints("nothing known in 3 lines")) << nothing.out;
  for (const char* file : {"absent.log", "."}) {
    const Outcome o = twinrun(folder, {"check", "--log", file});
    EXPECT_EQ(o.code, 128) << file;
    EXPECT_TRUE(o.says(file)) << o.err;
  }
}

TEST(CheckLog, TextNamesMeaningFixRuleAndPlace) {
  const Folder folder;
  write_text(folder / "error.log", kUneven);
  const Outcome alone = twinrun(folder, {"check", "--log", "error.log"});
  EXPECT_TRUE(alone.prints("cause batch-size-uneven  line 1")) << alone.out;
  EXPECT_TRUE(alone.prints("batch-not-divisible: the batch cannot be shared evenly")) << alone.out;
  EXPECT_TRUE(alone.prints("1 cause, 0 consequences, 0 remarks")) << alone.out;
  const Outcome beside =
      twinrun(folder, {"check", "digits_cnn", "--set", "train.batch=100", "--log", "error.log"});
  EXPECT_TRUE(beside.prints("which check finds, too: --set train.batch")) << beside.out;
  EXPECT_TRUE(beside.prints("--set train.batch=256")) << beside.out;
  const Outcome other = twinrun(folder, {"check", "digits_cnn", "--log", "error.log"});
  EXPECT_TRUE(other.prints("not found in")) << other.out;
}

TEST(CheckLog, CausesFirstAndWhatWouldSaveMemory) {
  const Folder folder;
  write_text(folder / "full.log", kFull);
  const Outcome o =
      twinrun(folder, {"check", "resnet50", "--set", "data.dir=gs://b", "--log", "full.log"});
  EXPECT_EQ(o.code, 1);
  EXPECT_LT(o.out.find("cause hbm-full"), o.out.find("consequence session-renewed")) << o.out;
  EXPECT_TRUE(o.prints("saves it")) << o.out;
  EXPECT_TRUE(o.prints("--set train.batch=")) << o.out;
}

// The example in the documentation is a real run: its log stands before what is printed.
TEST(CheckLog, TheDocumentationShowsARealRun) {
  const std::string page = read_text(TWINRUN_SOURCE_DIR "/docs/guides/check.md");
  const auto block_after = [&](const std::string& words) {
    const size_t from = page.find("```\n", page.find(words)) + 4;
    return page.substr(from, page.find("```\n", from) - from);
  };
  const Folder folder;
  write_text(folder / "train.log", block_after("A run that ended with these two lines"));
  const Outcome o =
      twinrun(folder, {"check", "digits_mlp", "--set", "train.batch=100", "--log", "train.log"});
  EXPECT_EQ(o.out, block_after("--log train.log` then says:"));
}

TEST(CheckLog, Json) {
  const Folder folder;
  write_text(folder / "full.log", kFull);
  const auto j = json_of(twinrun(folder, {"check", "resnet50", "--log", "full.log", "--json"}).out);
  EXPECT_EQ(j["kind"], "check-log");
  EXPECT_EQ(j["lines"], 2);
  EXPECT_EQ(j["causes"], 1);
  ASSERT_EQ(j["findings"].size(), 2U);
  const auto& f = j["findings"][0];
  EXPECT_EQ(f["id"], "hbm-full");
  EXPECT_EQ(f["line"], 2);
  EXPECT_EQ(f["arguments"]["limit"], "7.48G");
  EXPECT_EQ(f["memory"]["limit"], 8031588843);
  EXPECT_FALSE(f["advice"].empty());
  EXPECT_EQ(f["doc"], "docs/guides/check.md#log-hbm-full");
}

TEST(CheckLog, StandardInputAndHostileBytes) {
  const Folder folder;
  write_text(folder / "raw.log",
             std::string("\x1b[31mGradient for w\x1b]0;x\x07\x9b\xe2\x80\xae\xff is NaN\0\n", 39));
  const std::string command = std::string(TWINRUN_BINARY) + " check --log - < " +
                              (folder / "raw.log") + " > " + (folder / "out");
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);
  const std::string out = read_text(folder / "out");
  EXPECT_NE(out.find("standard input: 1 line"), std::string::npos) << out;
  EXPECT_NE(out.find("cause training-nan"), std::string::npos) << out;
  for (const char* bad : {"\x1b", "\x9b", "\xe2\x80\xae", "\xff", "\x07"})
    EXPECT_EQ(out.find(bad), std::string::npos);
}

}  // namespace
}  // namespace twinrun::e2e
