// Tests `twinrun diagnose` through the binary: verdicts, exit codes, files written, and the output
// on stdout and stderr.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

const Words kShort = {"--threads", "2", "--set", "train.steps=60"};

void expect_keys(const nlohmann::json& object, const Words& keys) {
  for (const std::string& key : keys) EXPECT_TRUE(object.contains(key)) << key;
}

// The keys of report.json that docs/reference/report-schema.md documents for programs.
void expect_schema(const nlohmann::json& report) {
  expect_keys(report, {"schema", "verdict", "findings", "runs", "environment"});
  EXPECT_EQ(report["schema"], 3);
  expect_keys(report["verdict"], {"class", "subject", "confidence"});
  ASSERT_FALSE(report["findings"].empty());
  for (const auto& finding : report["findings"]) {
    expect_keys(finding, {"class", "cause", "step", "phase", "op", "core", "share", "level",
                          "evidence", "reproduce"});
  }
  ASSERT_FALSE(report["runs"].empty());
  for (const auto& run : report["runs"]) {
    expect_keys(run, {"name", "engine", "root_digest", "eval_accuracy", "eval_loss"});
    EXPECT_EQ(run["root_digest"].get<std::string>().size(), 32u);
  }
  expect_keys(report["environment"], {"version", "contract", "isa", "cpu", "build", "threads"});
}

TEST(Diagnose, DigitsMlpIsNoiseAndLeavesItsResults) {
  const Folder folder;
  const Outcome o = twinrun(folder, with({"diagnose", "digits_mlp", "-o", "out"}, kShort));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(o.prints("NOISE")) << o.out;
  expect_schema(json_of(read_text(folder / "out/report.json")));
  EXPECT_EQ(json_of(read_text(folder / "out/report.json"))["verdict"]["class"], "NOISE");
  EXPECT_GT(fs::file_size(folder / "out/report.md"), 1000u);
  EXPECT_LT(fs::file_size(folder / "out/report.md"), 60'000u);
  const std::string page = read_text(folder / "out/report.html");
  EXPECT_LT(page.size(), size_t{1} << 20);
  for (const char* part : {"NOISE</span>", "id=\"chart-loss\"", "noise band", "id=\"chart-drift\"",
                           "id=\"chart-weights\"", "dense1/kernel", "id=\"digests\"", "core 7"})
    EXPECT_NE(page.find(part), std::string::npos) << part;
  const auto reported = json_of(read_text(folder / "out/report.json"));
  EXPECT_EQ(reported["weight_drift"]["rows"].size(), 4u);
  EXPECT_EQ(reported["weight_drift"]["steps"][0], 0);
  EXPECT_EQ(reported["loss_band"]["low"].size(), reported["runs"][0]["losses"].size());
  std::set<std::string> left;
  for (const std::string& name : folder.entries()) {
    if (name.ends_with(".h5")) left.insert(name);
    EXPECT_EQ(name.find("tmp"), std::string::npos) << name;
  }
  EXPECT_EQ(left, (std::set<std::string>{"out/init.h5", "out/runs/R.h5", "out/runs/R2.h5",
                                         "out/runs/R1.h5", "out/runs/E1.h5", "out/runs/S.h5",
                                         "out/runs/T.h5"}));
  // The digests in the report are those of the run files.
  const auto report = json_of(read_text(folder / "out/report.json"));
  for (const auto& run : report["runs"]) {
    const std::string file = "out/runs/" + run["name"].get<std::string>() + ".h5";
    const auto inspected = json_of(twinrun(folder, {"inspect", file, "--json"}).out);
    EXPECT_EQ(inspected["root_digest"], run["root_digest"]) << file;
  }
  EXPECT_EQ(report["runs"].size(), 6u);
  // Without a terminal, progress is plain lines without carriage returns or escapes, at least one
  // per run.
  EXPECT_EQ(o.err.find('\r'), std::string::npos);
  EXPECT_EQ(o.err.find('\x1b'), std::string::npos);
  EXPECT_EQ(o.out.find('\x1b'), std::string::npos);
  EXPECT_GE(std::count(o.err.begin(), o.err.end(), '\n'), 6);
}

TEST(Diagnose, DefaultFolderIsNameAndDigest) {
  const Folder folder;
  const Outcome o = twinrun(folder, with({"diagnose", "digits_mlp", "--quick"}, kShort));
  const auto resolved =
      json_of(twinrun(folder, {"inspect", "digits_mlp", "--json", "--set", "train.steps=60"}).out);
  const std::string digest = resolved["scenario_digest"].get<std::string>().substr(0, 8);
  // A quick diagnosis never takes the place of a full one.
  const std::string own = "twinrun-results/digits_mlp-" + digest + "-quick";
  EXPECT_TRUE(fs::exists(folder / (own + "/report.json"))) << o.err;
  // Another fault gets another folder, so that the earlier report is not overwritten.
  std::set<std::string> folders{own};
  for (const char* fault : {"scale@dense1/kernel.grad,from=5", "scale@dense1/kernel.grad,from=6"}) {
    const auto plan = json_of(twinrun(folder, with({"diagnose", "digits_mlp", "--quick",
                                                    "--dry-run", "--json", "--fault", fault},
                                                   kShort))
                                  .out);
    EXPECT_TRUE(folders.insert(plan["directory"].get<std::string>()).second) << plan;
  }
}

TEST(Diagnose, JsonIsOneDocumentOnStdout) {
  const Folder folder;
  const Outcome o =
      twinrun(folder, with({"diagnose", "digits_mlp", "--json", "-o", "out"}, kShort));
  EXPECT_EQ(o.code, 0);
  const auto report = json_of(o.out);  // throws if stdout has anything else
  expect_schema(report);
  EXPECT_EQ(report, json_of(read_text(folder / "out/report.json")));
  EXPECT_FALSE(o.err.empty());  // progress still goes to stderr
}

TEST(Diagnose, QuietIsSilentOnStderr) {
  const Folder folder;
  const Outcome o = twinrun(folder, with({"diagnose", "digits_mlp", "-q", "-o", "out"}, kShort));
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(o.err, "");
  EXPECT_TRUE(o.prints("NOISE"));
}

TEST(Diagnose, SummedLossIsSharding) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"diagnose", "digits_mlp", "--set", "loss.reduction=sum",
                                     "--json", "-q", "-o", "out"});
  EXPECT_EQ(o.code, 10) << o.err;
  const auto report = json_of(o.out);
  EXPECT_EQ(report["verdict"]["class"], "SHARDING");
  EXPECT_EQ(report["findings"][0]["cause"], "reduction");
  EXPECT_NEAR(report["findings"][0]["share"].get<double>(), 1, 1e-6);
}

TEST(Diagnose, DivergingReferencesAreInconclusive) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"diagnose", "litmus_nan", "--json", "-q", "-o", "out"});
  EXPECT_EQ(o.code, 125) << o.err;
  const auto report = json_of(o.out);
  EXPECT_EQ(report["verdict"]["class"], "INCONCLUSIVE");
  const auto& finding = report["findings"][0];
  EXPECT_FALSE(finding["op"].get<std::string>().empty());
  EXPECT_TRUE(finding["step"].is_number());
  const auto headline = report["verdict"]["headline"].get<std::string>();
  EXPECT_NE(headline.find(finding["op"].get<std::string>() + " first produces"), std::string::npos)
      << headline;
  // The subject was not judged, so no choice of classes calls it good.
  EXPECT_EQ(
      twinrun(folder, {"diagnose", "litmus_nan", "--fail-on", "engine_bug", "-q", "-o", "out"})
          .code,
      125);
}

TEST(Diagnose, AProvenCauseLeadsAQuickLook) {
  const Folder folder;
  const Words quick = with({"diagnose", "digits_mlp", "--quick", "--set", "tpu.reduction=none",
                            "--json", "-q", "-o", "out"},
                           kShort);
  const Outcome o = twinrun(folder, quick);
  EXPECT_EQ(o.code, 10) << o.err;
  const auto report = json_of(o.out);
  EXPECT_EQ(report["verdict"]["class"], "SHARDING");
  EXPECT_EQ(report["findings"][0]["cause"], "no_all_reduce");
  const auto headline = report["verdict"]["headline"].get<std::string>();
  EXPECT_NE(headline.find("missing all-reduce 100%"), std::string::npos) << headline;
}

TEST(Diagnose, OneCoreInFullPrecisionIsIdentical) {
  const Folder folder;
  const Outcome o = twinrun(folder, with({"diagnose", "digits_mlp", "--set", "tpu.precision=f32",
                                          "--set", "tpu.cores=1", "--json", "-q", "-o", "out"},
                                         kShort));
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_EQ(json_of(o.out)["verdict"]["class"], "IDENTICAL");
}

TEST(Diagnose, QuickDecidesOnlyWhatNeedsNoSeeds) {
  const Folder folder;
  const Outcome o =
      twinrun(folder, with({"diagnose", "digits_mlp", "--quick", "-o", "out"}, kShort));
  EXPECT_EQ(o.code, 125) << o.err;
  EXPECT_EQ(o.err.find("T#1"), std::string::npos) << o.err;  // no further seeds were run
  EXPECT_TRUE(o.prints("--quick")) << o.out;
}

TEST(Diagnose, FailOnNarrowsWhatIsBad) {
  const Folder folder;
  const Words bug = with({"diagnose", "digits_mlp", "-q", "-o", "out", "--quick", "--fault",
                          "scale@dense2/kernel.grad"},
                         {"--threads", "2", "--set", "train.steps=4"});
  EXPECT_EQ(twinrun(folder, bug).code, 20);
  EXPECT_EQ(twinrun(folder, with(bug, {"--fail-on", "engine_bug"})).code, 20);
  EXPECT_EQ(twinrun(folder, with(bug, {"--fail-on", "SHARDING, engine_bug"})).code, 20);
  EXPECT_EQ(twinrun(folder, with(bug, {"--fail-on", "sharding"})).code, 0);
  const Outcome wrong = twinrun(folder, with(bug, {"--fail-on", "engine_bugs"}));
  EXPECT_EQ(wrong.code, 128);
  EXPECT_TRUE(wrong.says("did you mean 'engine_bug'?")) << wrong.err;
}

TEST(Diagnose, DryRunRunsNothing) {
  const Folder folder;
  const Outcome o = twinrun(folder, {"diagnose", "digits_mlp", "--dry-run"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(folder.entries().empty());
  for (const char* part : {"R ", "R2", "R1", "E1", "S ", "T ", "GFLOP", "MB", "in all"}) {
    EXPECT_TRUE(o.prints(part)) << part << "\n" << o.out;
  }
}

TEST(Diagnose, ThreadsNeverChangeABit) {
  const Folder folder;
  const auto digests = [&](const std::string& threads) {
    const Outcome o =
        twinrun(folder, {"diagnose", "litmus_batchnorm_small", "--quick", "--json", "-q", "-o",
                         "out", "--set", "train.steps=5", "--threads", threads});
    std::map<std::string, std::string> found;
    const auto report = json_of(o.out);
    for (const auto& run : report["runs"]) found[run["name"]] = run["root_digest"];
    return found;
  };
  const auto one = digests("1");
  EXPECT_EQ(one.size(), 6u);
  EXPECT_EQ(one.at("R"), one.at("R2"));
  EXPECT_NE(one.at("R"), one.at("T"));
  EXPECT_EQ(one, digests("3"));
}

TEST(Diagnose, ReferenceRunsAreKeptAndNeverChangeAVerdict) {
  const Folder folder;
  const std::map<std::string, std::string> cache = {{"TWINRUN_CACHE", folder / "cache"}};
  const auto diagnose = [&](const std::string& out, const Words& more) {
    const Words words = with({"diagnose", "digits_mlp", "--json", "-o", out}, kShort);
    const Outcome o = twinrun(folder, with(words, more), cache);
    EXPECT_EQ(o.code, 0) << o.err;
    return o;
  };
  const auto kept = [](const Outcome& o) { return o.says("(kept)"); };
  const auto content = [](const Outcome& o) {
    auto report = json_of(o.out);
    std::map<std::string, std::string> digests;
    for (const auto& run : report["runs"]) digests[run["name"]] = run["root_digest"];
    return std::pair(digests, report["verdict"]["headline"].get<std::string>());
  };
  const Outcome first = diagnose("a", {}), second = diagnose("b", {}),
                fresh = diagnose("c", {"--fresh"});
  EXPECT_FALSE(kept(first));
  EXPECT_TRUE(kept(second)) << second.err;
  EXPECT_FALSE(kept(fresh));
  EXPECT_EQ(content(first), content(second));
  EXPECT_EQ(content(first), content(fresh));

  // Another scenario finds nothing in the cache; a damaged entry is computed again.
  EXPECT_FALSE(kept(diagnose("d", {"--set", "seed=5"})));
  // Whole files under each other's names are not believed.
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder / "cache")) files.push_back(entry.path());
  ASSERT_GT(files.size(), 2u);
  const std::string last = read_text(files.back());
  for (size_t i = files.size() - 1; i > 0; --i) write_text(files[i], read_text(files[i - 1]));
  write_text(files.front(), last);
  const Outcome swapped = diagnose("s", {});
  EXPECT_FALSE(kept(swapped));
  EXPECT_EQ(content(first), content(swapped));
  for (const auto& entry : fs::directory_iterator(folder / "cache")) {
    std::string bytes = read_text(entry.path());
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
    bytes.resize(bytes.size() * 3 / 4);
    write_text(entry.path(), bytes);
  }
  const Outcome damaged = diagnose("e", {});
  EXPECT_FALSE(kept(damaged));
  EXPECT_EQ(content(first), content(damaged));

  // A faulty subject is compared with the cached reference, and the fault is found.
  const Outcome fault = twinrun(
      folder,
      with({"diagnose", "digits_mlp", "-o", "f", "--fault", "scale@dense2/kernel.grad"}, kShort),
      cache);
  EXPECT_EQ(fault.code, 20);
  EXPECT_TRUE(kept(fault));
}

// ---- faults that the documentation names

struct Fault {
  const char* name;
  const char* text;
  const char* op;
  int64_t step;
  int core;  // -1: the fault is not specific to one core
};
std::ostream& operator<<(std::ostream& out, const Fault& f) { return out << f.text; }

constexpr Fault kFaults[] = {
    {"Truncate", "truncate_bf16@dense1/dot_general", "dense1/dot_general", 0, -1},
    {"DropTail", "drop_k_tail@dense1/kernel.grad,from=5", "dense1/kernel.grad", 5, -1},
    {"Scale", "scale@dense2/kernel.grad,from=7", "dense2/kernel.grad", 7, -1},
    {"DropCore", "drop_core@dense1/kernel.grad.all_reduce,core=3", "dense1/kernel.grad.all_reduce",
     0, -1},
    {"OneCoreWrong", "one_core_wrong@dense1/kernel.grad.all_reduce,core=3",
     "dense1/kernel.grad.all_reduce", 0, 3},
    {"StaleWeights", "stale_weights@dense2/kernel.update,from=4", "dense2/kernel.update", 4, -1},
    {"BitFlip", "bit_flip@dense1/kernel.grad,step=57,core=2", "dense1/kernel.grad", 57, 2}};

void expect_found(const Fault& f, const Words& more) {
  const Folder folder;
  const Outcome o = twinrun(
      folder,
      with({"diagnose", "digits_mlp", "--json", "-q", "-o", "out", "--fault", f.text}, more));
  EXPECT_EQ(o.code, 20) << o.err;
  const auto report = json_of(o.out);
  EXPECT_EQ(report["verdict"]["class"], "ENGINE_BUG");
  const auto& finding = report["findings"][0];
  EXPECT_EQ(finding["class"], "ENGINE_BUG");
  EXPECT_EQ(finding["op"], f.op);
  EXPECT_EQ(finding["step"], f.step);
  if (f.core >= 0) {
    EXPECT_EQ(finding["core"], f.core);
  } else {
    EXPECT_TRUE(finding["core"].is_null());
  }
  const auto reproduce = finding["reproduce"].get<std::string>();
  EXPECT_NE(reproduce.find(f.text), std::string::npos) << reproduce;
  // The Markdown report names the op, too.
  EXPECT_NE(read_text(folder / "out/report.md").find(f.op), std::string::npos);
}

class DiagnoseFault : public testing::TestWithParam<Fault> {};
TEST_P(DiagnoseFault, IsFound) { expect_found(GetParam(), kShort); }
INSTANTIATE_TEST_SUITE_P(All, DiagnoseFault, testing::ValuesIn(kFaults),
                         [](const auto& info) { return std::string(info.param.name); });

class DiagnoseFaultSlow : public testing::TestWithParam<Fault> {};
TEST_P(DiagnoseFaultSlow, IsFoundInTheWholeScenario) { expect_found(GetParam(), {}); }
INSTANTIATE_TEST_SUITE_P(All, DiagnoseFaultSlow,
                         testing::Values(kFaults[0], kFaults[3], kFaults[6]),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Diagnose, FaultHelpListsTheKindsWhateverElseIsMissing) {
  const Folder folder;
  for (const Words& words :
       {Words{"diagnose", "--fault", "help"}, Words{"train", "--fault=help"}}) {
    const Outcome o = twinrun(folder, words);
    EXPECT_EQ(o.code, 0) << o.err;
    for (const char* kind : {"  truncate_bf16 ", "  untied ", "  bit_flip ", "collectives\n"})
      EXPECT_TRUE(o.prints(kind)) << o.out;
  }
  const Outcome typo = twinrun(folder, {"diagnose", "digits_mlp", "--fault", "bitflip@*"});
  EXPECT_EQ(typo.code, 128);
  EXPECT_TRUE(typo.says("did you mean 'bit_flip'?")) << typo.err;
  EXPECT_TRUE(typo.says("--fault help")) << typo.err;
}

TEST(Diagnose, AScenarioCanNameFaults) {
  const Folder folder;
  const Outcome o =
      twinrun(folder, with({"diagnose", "digits_mlp", "--json", "-q", "-o", "out", "--set",
                            "diagnose.faults=[\"scale@dense2/kernel.grad,from=3\"]"},
                           kShort));
  EXPECT_EQ(o.code, 20) << o.err;
  EXPECT_EQ(json_of(o.out)["findings"][0]["op"], "dense2/kernel.grad");
  EXPECT_EQ(json_of(o.out)["findings"][0]["step"], 3);
  const Outcome bad =
      twinrun(folder, {"diagnose", "digits_mlp", "-q", "--set", "diagnose.faults=[\"scale\"]"});
  EXPECT_EQ(bad.code, 128);
  EXPECT_TRUE(bad.says("diagnose.faults: 'scale': the '@' between the kind and the op is missing"))
      << bad.err;
}

// Library scenarios state their expected verdict in their first lines; `code` is its exit code.
struct Word {
  const char* scenario;
  int code;
  Words settings = {};
};
std::ostream& operator<<(std::ostream& out, const Word& w) { return out << w.scenario; }
const Word kWords[] = {{"digits_mlp", 0},
                       {"litmus_dropout", 0},
                       {"litmus_reduction_sum", 10},
                       {"litmus_batchnorm_small", 10},
                       {"litmus_clip_before_reduce", 10},
                       {"mlp_bn", 10},
                       {"triplet_phrases", 10},
                       {"gan_digits", 10},
                       {"litmus_batchnorm_small", 0, {"--set", "tpu.batchnorm=synced"}}};

class DiagnoseLibrarySlow : public testing::TestWithParam<Word> {};
TEST_P(DiagnoseLibrarySlow, KeepsItsWord) {
  const Folder folder;
  const Word& word = GetParam();
  const Outcome o =
      twinrun(folder, with(with({"diagnose", word.scenario}, word.settings), {"-q", "-o", "out"}));
  EXPECT_EQ(o.code, word.code) << o.out << o.err;
}
INSTANTIATE_TEST_SUITE_P(All, DiagnoseLibrarySlow, testing::ValuesIn(kWords), [](const auto& info) {
  return std::string(info.param.scenario) + (info.param.settings.empty() ? "" : "_synced");
});

// The demo scenario with four samples per core: the cause is batch norm, and synchronising its
// statistics explains the whole difference.
TEST(DiagnoseSlow, SmallBatchNormNamesTheShareThatSyncingRemoves) {
  const Folder folder;
  const Outcome o = twinrun(
      folder, {"diagnose", "digits_cnn", "--set", "train.batch=32", "--json", "-q", "-o", "out"});
  EXPECT_EQ(o.code, 10) << o.err;
  const auto report = json_of(o.out);
  const auto& finding = report["findings"][0];
  EXPECT_EQ(finding["cause"], "batch_norm");
  EXPECT_NEAR(finding["share"].get<double>(), 1, 1e-6);
}

// Three seeds do not decide at the learning rate of this scenario, so the diagnosis adds seeds
// until the effect is decided.
TEST(DiagnoseSlow, LitmusPrecisionKeepsItsWord) {
  const Folder folder;
  EXPECT_EQ(twinrun(folder, {"diagnose", "litmus_precision", "-q", "-o", "out"}).code, 0);
}

}  // namespace
}  // namespace twinrun::e2e
