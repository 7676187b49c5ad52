// Tests the description of a program that a foreign engine receives, and which of its answers are
// compared.
#include <nlohmann/json.hpp>
#include <set>

#include "backends/exec/messages.h"
#include "harness/envelope/envelope.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

nlohmann::json reported_of(const Experiment& e) {
  return nlohmann::json::parse(exec::program_json(e.sharded(e.sharding), ""));
}

// The description has the scenario's own words for sharding, because adapters and the parity tests
// read either of the two.
TEST(ExecProgram, ShardingIsInTheScenariosWords) {
  using Settings = std::vector<std::pair<std::string, std::string>>;
  for (const Settings& settings : {Settings{}, Settings{{"tpu.batchwise", "gathered"},
                                                        {"tpu.token_mean", "global"},
                                                        {"tpu.batchnorm", "synced"},
                                                        {"tpu.batchnorm_group", "2"},
                                                        {"tpu.clipping", "before_all_reduce"}}}) {
    const Scenario s = tiny::must(load_scenario("triplet_phrases", settings));
    const Experiment e = tiny::must(make_experiment(s));
    const nlohmann::json reported = reported_of(e).at("sharding");
    EXPECT_EQ(reported.at("batchwise"), s.tpu.batchwise);
    EXPECT_EQ(reported.at("token_mean"), s.tpu.token_mean);
    EXPECT_EQ(reported.at("batchnorm"), s.tpu.batchnorm);
    EXPECT_EQ(reported.at("batchnorm_group"), s.tpu.batchnorm_group);
    EXPECT_EQ(reported.at("clipping"), s.tpu.clipping);
  }
}

// An engine is not judged by outputs that were not requested from it: a GAN has a second loss.
TEST(ExecProgram, NothingIsComparedThatIsNotAskedFor) {
  for (const char* name : {"gan_digits", "drill_cnn"}) {
    const Experiment e = tiny::must(make_experiment(tiny::must(load_scenario(name))));
    const nlohmann::json reported = reported_of(e);
    std::set<std::string> asked;
    for (const auto& output : reported.at("outputs")) asked.insert(output.at("name"));
    size_t outputs = 0;
    for (const Compared& c : compared_tensors(e.sharded(e.sharding))) {
      if (c.is_state) continue;
      ++outputs;
      EXPECT_TRUE(asked.contains(c.tensor)) << name << ": " << c.tensor;
    }
    EXPECT_EQ(outputs, asked.size()) << name;
  }
}

}  // namespace
}  // namespace twinrun
