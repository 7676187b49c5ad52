// What an engine of others is told of a sharding, in the scenario's own words: adapters and the parity tests read either.
#include <nlohmann/json.hpp>

#include "backends/exec/messages.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

TEST(ExecProgram, ShardingIsInTheScenariosWords) {
  using Settings = std::vector<std::pair<std::string, std::string>>;
  for (const Settings& settings : {Settings{},
                                   Settings{{"tpu.batchwise", "gathered"},
                                            {"tpu.token_mean", "global"},
                                            {"tpu.batchnorm", "synced"},
                                            {"tpu.batchnorm_group", "2"},
                                            {"tpu.clipping", "before_all_reduce"}}}) {
    const Scenario s = tiny::must(load_scenario("triplet_phrases", settings));
    const Experiment e = tiny::must(make_experiment(s));
    const nlohmann::json told =
        nlohmann::json::parse(exec::program_json(e.sharded(e.sharding), "")).at("sharding");
    EXPECT_EQ(told.at("batchwise"), s.tpu.batchwise);
    EXPECT_EQ(told.at("token_mean"), s.tpu.token_mean);
    EXPECT_EQ(told.at("batchnorm"), s.tpu.batchnorm);
    EXPECT_EQ(told.at("batchnorm_group"), s.tpu.batchnorm_group);
    EXPECT_EQ(told.at("clipping"), s.tpu.clipping);
  }
}

}  // namespace
}  // namespace twinrun
