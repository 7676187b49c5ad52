// Engines behind the engine protocol, from the command line: ours, served, so that what is due is known to the bit.
#include "tests/e2e/process.h"

namespace twinrun::e2e {
namespace {

std::string served(const std::string& engine, const std::string& more = "") {
  return std::string("exec:'") + TWINRUN_BINARY + "' serve --engine " + engine +
         (more.empty() ? "" : " --fault '" + more + "'");
}

class Exec : public testing::Test {
 protected:
  nlohmann::json train(const std::string& scenario, const std::string& engine,
                       const std::string& cores) {
    const Outcome r = twinrun(folder_, {"train", scenario, "--engine", engine, "--cores", cores,
                                        "--set", "train.steps=6", "--json", "-q", "-o", "run.h5"});
    EXPECT_EQ(r.code, 0) << r.err;
    return json_of(r.out);
  }
  nlohmann::json diagnose(const std::string& scenario, const std::string& subject, int code) {
    const Outcome r =
        twinrun(folder_, {"diagnose", scenario, "--subject", subject, "--json", "-q", "-o", "out"});
    EXPECT_EQ(r.code, code) << r.out.substr(0, 2000) << r.err;
    return json_of(r.out);
  }
  Folder folder_;
};

// Nothing is lost on the way: dropout's numbers, statistics of each core, Adam's slots.
TEST_F(Exec, AServedEngineGivesTheBitsOfTheEngine) {
  const std::pair<const char*, const char*> runs[] = {
      {"drill_triplet", "cpu"}, {"drill_triplet", "tpu"}, {"drill_dropout", "tpu"}};
  for (const auto& [scenario, engine] : runs) {
    for (const char* cores : {"1", "4"}) {
      EXPECT_EQ(train(scenario, served(engine), cores)["state_digest"],
                train(scenario, engine, cores)["state_digest"])
          << scenario << " " << engine << " " << cores;
    }
  }
}

TEST_F(Exec, AnHonestSubjectIsNoise) {
  const auto report = diagnose("drill_mlp", served("tpu"), 0);
  EXPECT_EQ(report["verdict"]["class"], "NOISE");
  EXPECT_EQ(report["findings"][0]["level"], "C");
  EXPECT_TRUE(report["probes"].empty());  // no op was shown
}

TEST_F(Exec, AWrongOneIsFoundByItsTensors) {
  const auto report =
      diagnose("drill_mlp", served("tpu", "scale@dense1/kernel.grad.all_reduce,magnitude=1.5"), 20);
  EXPECT_EQ(report["verdict"]["class"], "ENGINE_BUG");
  EXPECT_EQ(report["findings"][0]["op"], "dense1/kernel.grad");
  EXPECT_EQ(report["findings"][0]["step"], 0);
}

TEST_F(Exec, OneThatIsNotThereOrDies) {
  const Outcome gone =
      twinrun(folder_, {"diagnose", "drill_mlp", "--subject", "exec:/no/such/engine", "-o", "out"});
  EXPECT_EQ(gone.code, 125);
  EXPECT_NE(gone.err.find("cannot be started"), std::string::npos) << gone.err;
  const Outcome dies = twinrun(folder_, {"diagnose", "drill_mlp", "--subject",
                                         "exec:sh -c 'echo no device >&2; exit 7'", "-o", "out"});
  EXPECT_EQ(dies.code, 125);
  EXPECT_NE(dies.err.find("exit status 7"), std::string::npos) << dies.err;
  EXPECT_NE(dies.err.find("no device"), std::string::npos) << dies.err;
}

}  // namespace
}  // namespace twinrun::e2e
