// Tests `twinrun record`, `verify` and `compare` through the binary: exit codes and files for CI.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

const Words kTiny = {"--set", "train.steps=6", "--set", "data.train=128",
                     "--set", "data.eval=32",  "-q"};
const char* const kGateFault = "scale@dense1/kernel.grad,from=2,magnitude=1.5";

class Gates : public testing::Test {
 protected:
  void record(const std::string& file, const std::string& engine = "cpu") {
    const Outcome o =
        twinrun(folder_, with({"record", "digits_mlp", "-e", engine, "-o", file}, kTiny));
    EXPECT_EQ(o.code, 0) << o.err;
  }
  Outcome verify(const Words& more, const std::map<std::string, std::string>& environment = {}) {
    return twinrun(folder_, with({"verify", "-q"}, more), environment);
  }
  Folder folder_;
};

TEST_F(Gates, TheSameBitsUnderEveryIsaAndThreadCount) {
  record("g.golden.h5", "tpu");
  for (const char* isa : {"scalar", "avx2", "avx512"}) {
    for (const char* threads : {"1", "3"}) {
      const Outcome o = verify({"g.golden.h5", "--threads", threads}, {{"TWINRUN_ISA", isa}});
      EXPECT_EQ(o.code, 0) << o.out << o.err;
      EXPECT_TRUE(o.prints("PASSED")) << o.out;
      EXPECT_TRUE(o.prints("The same bits")) << o.out;
    }
  }
}

TEST_F(Gates, AChangeEndsWithOneAndFilesForCiSayWhat) {
  record("g.golden.h5");
  const Outcome o =
      verify({"g.golden.h5", "--fault", kGateFault, "--junit", "v.xml", "--jsonl", "v.jsonl"});
  EXPECT_EQ(o.code, 1) << o.out << o.err;
  EXPECT_TRUE(o.prints("step 2, dense1/kernel.grad")) << o.out;
  const auto j = json_of(read_text(folder_ / "v.jsonl"));
  EXPECT_EQ(j["outcome"], "moved");
  EXPECT_EQ(j["decides"], "bits");
  EXPECT_EQ(j["moved"]["step"], 2);
  EXPECT_EQ(j["moved"]["tensor"], "dense1/kernel.grad");
  EXPECT_NE(read_text(folder_ / "v.xml").find("<failure type=\"moved\""), std::string::npos);
  const auto all = json_of(verify({"g.golden.h5", "--fault", kGateFault, "--json"}).out);
  EXPECT_EQ(all["exit_code"], 1);
  EXPECT_EQ(all["goldens"].size(), 1u);
}

TEST_F(Gates, TheWorstOfAFolderCounts) {
  fs::create_directories(folder_ / "goldens/below");
  record("goldens/a.golden.h5");
  record("goldens/below/b.golden.h5", "tpu");
  EXPECT_EQ(verify({"goldens"}).code, 0);
  write_text(folder_ / "goldens/c.golden.h5", "no HDF5");
  write_text(folder_ / "goldens/notes.txt", "not looked at");
  const Outcome o = verify({"goldens", "--jsonl", "v.jsonl", "--junit", "v.xml"});
  EXPECT_EQ(o.code, 128) << o.out;
  const std::string lines = read_text(folder_ / "v.jsonl");
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 3);
  EXPECT_NE(lines.find("bad_input"), std::string::npos);
  EXPECT_NE(read_text(folder_ / "v.xml").find("tests=\"3\" failures=\"0\" errors=\"1\""),
            std::string::npos);
  // An engine that cannot be started is an error of this case (exit code 125), not a failed gate.
  EXPECT_EQ(verify({"goldens/a.golden.h5", "--engine", "exec:/does/not/exist"}).code, 125);
}

TEST_F(Gates, AnotherEngineIsHeldToTheNoise) {
  record("g.golden.h5");
  const Outcome conforming = verify({"g.golden.h5", "--engine", "honest:3"});
  EXPECT_EQ(conforming.code, 0) << conforming.out;
  EXPECT_TRUE(conforming.prints("inside the noise")) << conforming.out;
  EXPECT_EQ(verify({"g.golden.h5", "--engine", "honest:3", "--bits"}).code, 1);
  const Outcome wrong = verify(
      {"g.golden.h5", "--engine", "honest:3", "--fault", "scale@dense1/kernel.grad,magnitude=2"});
  EXPECT_EQ(wrong.code, 1) << wrong.out;
  EXPECT_TRUE(wrong.prints("Outside the noise of conforming engines, first in dense1/kernel.grad"))
      << wrong.out;
}

// An engine of another process shows only tensors and does not promise our bits. Noise decides
// whether it passes, and bits show where the first difference is.
TEST_F(Gates, AnEngineOfAnotherProcess) {
  const std::string served = std::string("exec:'") + TWINRUN_DEV + "' serve --engine cpu";
  record("g.golden.h5", served);
  const Outcome same = verify({"g.golden.h5", "--json"});
  EXPECT_EQ(same.code, 0) << same.out << same.err;
  EXPECT_EQ(json_of(same.out)["goldens"][0]["decides"], "noise");
  EXPECT_EQ(json_of(same.out)["goldens"][0]["outcome"], "same");
  const Outcome moved =
      verify({"g.golden.h5", "--json", "--engine", served + " --fault '" + kGateFault + "'"});
  EXPECT_EQ(moved.code, 1) << moved.out << moved.err;
  const auto gate = json_of(moved.out)["goldens"][0];
  EXPECT_EQ(gate["outcome"], "moved") << gate.dump(2);
  EXPECT_EQ(gate["moved"]["tensor"], "dense1/kernel.grad");
}

TEST_F(Gates, WrongWordsAre128AndNameTheRightOnes) {
  record("g.golden.h5");
  EXPECT_TRUE(twinrun(folder_, with({"train", "digits_mlp", "-o", "run.h5"}, kTiny)).code == 0);
  const std::pair<Words, const char*> cases[] = {
      {{"verify", "run.h5"}, "not a golden one"},
      {{"verify", "missing.golden.h5"}, "missing.golden.h5"},
      {{"verify"}, "GOLDEN.. is missing"},
      {{"verify", "g.golden.h5", "--bits", "--noise"}, "one of them"},
      {{"verify", "g.golden.h5", "--set", "train.steps=3"}, "changes a setting of the golden run"},
      {{"verify", "g.golden.h5", "--update", "--engine", "tpu"}, "leave out --engine"},
      {{"verify", "g.golden.h5", "--junit", "g.golden.h5/v.xml"}, "a folder that you may write to"},
      {{"verify", "g.golden.h5", "--fault", "scale@dense9*"}, "dense9"},
      {{"record", "digits_mlp", "--states", "0"}, "1 to 100"},
      {{"record", "digits_mlp", "--cores", "7"}, "a divisor of the batch"},
      {{"record", "digits_mlp", "-e", "cpu:f64"}, "binary64"},
      {{"compare", "digits_mlp", "--metric", "lost"}, "loss, accuracy"},
      {{"compare", "digits_mlp", "--seeds", "0"}, "1 to 10000"},
      {{"compare", "digits_mlp", "--margin", "-1"}, "above 0"},
      {{"compare", "digits_mlp", "--b-set", "train.step=3"}, "did you mean \"steps\""},
      {{"compare", "digits_mlp", "--b", "tpv"}, "tpu"},
  };
  for (const auto& [words, part] : cases) {
    const Outcome o = twinrun(folder_, with(words, {"-q"}));
    EXPECT_EQ(o.code, 128) << words.back() << o.out << o.err;
    EXPECT_TRUE(o.says(part) || o.prints(part)) << part << "\n" << o.out << o.err;
  }
  fs::create_directories(folder_ / "empty");
  const Outcome o = verify({"empty"});
  EXPECT_EQ(o.code, 128);
  EXPECT_TRUE(o.says(".golden.h5")) << o.err;
}

TEST_F(Gates, ARunThatDivergesIsNoGolden) {
  const Outcome o = twinrun(folder_, {"record", "litmus_nan", "-q", "-o", "g.golden.h5"});
  EXPECT_EQ(o.code, 1) << o.err;
  EXPECT_TRUE(o.says("no golden run")) << o.err;
  EXPECT_TRUE(folder_.entries().empty());
}

TEST_F(Gates, UpdateRecordsAnewAndTheNextOnePasses) {
  // The golden run is recorded while the engine is wrong; afterwards the same command is a correct
  // engine.
  write_text(folder_ / "engine.sh", "#!/bin/sh\nexec '" + std::string(TWINRUN_DEV) +
                                        "' serve --engine cpu --fault '" + kGateFault +
                                        "' \"$@\"\n");
  record("g.golden.h5", "exec:/bin/sh engine.sh");
  write_text(folder_ / "engine.sh",
             "#!/bin/sh\nexec '" + std::string(TWINRUN_DEV) + "' serve --engine cpu \"$@\"\n");
  const Outcome found = verify({"g.golden.h5", "--update", "--bits"});
  EXPECT_EQ(found.code, 1) << found.out << found.err;
  EXPECT_TRUE(found.prints("step 2, dense1/kernel.grad")) << found.out;
  // The golden run itself lies outside the noise, which the report states; noise then decides
  // nothing.
  EXPECT_TRUE(found.prints("the golden run itself lies outside")) << found.out;
  EXPECT_TRUE(found.prints("was rewritten")) << found.out;
  EXPECT_EQ(verify({"g.golden.h5", "--bits"}).code, 0);
}

TEST_F(Gates, CompareSaysByItsExitCodeWhatItFound) {
  const auto compare = [&](const Words& more) {
    const Outcome o =
        twinrun(folder_, with(with({"compare", "digits_mlp", "--json"}, kTiny), more));
    EXPECT_EQ(o.err, "");
    const auto j = json_of(o.out);
    EXPECT_EQ(j["exit_code"], o.code);
    return j;
  };
  EXPECT_EQ(compare({})["outcome"], "identical");
  const auto equivalent = compare({"--b", "tpu", "--margin", "1"});
  EXPECT_EQ(equivalent["outcome"], "equivalent");
  EXPECT_EQ(equivalent["seeds"].size(), 3u);
  EXPECT_EQ(equivalent["differences"].size(), 3u);
  EXPECT_EQ(compare({"--b-set", "loss.reduction=sum", "--margin", "0.001"})["outcome"], "differs");
  const auto open = compare({"--b-set", "optimizer.lr=0.0101", "--seeds", "2", "--margin", "1e-5"});
  EXPECT_EQ(open["outcome"], "undetermined");
  EXPECT_GT(open["needed_seeds"], 2);
  EXPECT_EQ(compare({"--a-fault", kGateFault, "--seeds", "1"})["outcome"], "undetermined");
}

}  // namespace
}  // namespace twinrun::e2e
