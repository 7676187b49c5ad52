// Tests that each known cause of sharding is one setting of a scenario, which another setting
// undoes, and that the diagnosis of such a scenario names it.
#include <gtest/gtest.h>

#include <algorithm>

#include "harness/diagnose/pipeline.h"
#include "harness/sharding/causes.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

struct Setting {
  const char* cause;
  Overrides keys;
};

const std::vector<Setting>& settings() {
  static const std::vector<Setting> all = {
      {"reduction", {{"tpu.reduction", "sum"}}},
      {"unscaled", {{"tpu.scaling", "never"}}},
      {"scaled_twice", {{"tpu.scaling", "once_more"}}},
      {"batch_norm", {{"tpu.batchnorm", "per_core"}, {"tpu.statistics", "global"}}},
      {"averaged_variance", {{"tpu.batchnorm", "averaged"}}},
      {"statistics", {{"tpu.statistics", "per_core"}}},
      {"averaged_statistics", {{"tpu.statistics", "averaged"}}},
      {"clipping", {{"tpu.clipping", "before_all_reduce"}}},
      {"l2", {{"tpu.l2_terms", "every_core"}}},
      {"rate_times_cores", {{"tpu.rate_scaling", "times_cores"}}},
      {"rate_over_cores", {{"tpu.rate_scaling", "over_cores"}}},
      {"one_stream", {{"tpu.streams", "one"}}},
      {"stream_per_core", {{"tpu.streams", "per_core"}}},
      {"same_shard", {{"tpu.shards", "first"}}},
      {"shard_twice", {{"tpu.shards", "first_twice"}}},
      {"remainder_padded", {{"tpu.remainder", "padded"}}},
      {"remainder_repeated", {{"tpu.remainder", "repeated"}}},
      {"remainder_dropped", {{"tpu.remainder", "dropped"}}},
      {"no_all_reduce", {{"tpu.reduction", "none"}}},
  };
  return all;
}

// A model in which every cause but those of pairs and of tokens has something to act on, and none
// is present.
Experiment with(const Overrides& more) {
  Overrides o = {{"tpu.batchnorm", "synced"},
                 {"optimizer.clip", "value"},
                 {"optimizer.clip_at", "0.02"},
                 {"optimizer.l2", "0.01"}};
  o.insert(o.end(), more.begin(), more.end());
  return tiny::experiment(tiny::kNormalized, o);
}

TEST(ScenarioCauses, EachIsASetting) {
  const Experiment clean = with({});
  ASSERT_TRUE(present_causes(clean, clean.sharding).empty());
  std::vector<std::string> reached = {"batch_wise", "token_mean"};  // below
  for (const Setting& setting : settings()) {
    const Experiment e = with(setting.keys);
    EXPECT_EQ(present_causes(e, e.sharding), std::vector<std::string>{setting.cause});
    EXPECT_EQ(digest(e.whole()), digest(clean.whole())) << setting.cause << " is of the sharding";
    EXPECT_NE(digest(e.sharded(e.sharding)), digest(clean.sharded(clean.sharding)))
        << setting.cause;
    EXPECT_TRUE(present_causes(e, faithful(e)).empty()) << setting.cause;
    reached.emplace_back(setting.cause);
  }
  const Experiment pairs = tiny::must(make_experiment(tiny::must(load_scenario(
      "triplet_phrases", {{"tpu.batchwise", "per_core"}, {"tpu.token_mean", "per_core"}}))));
  const std::vector<std::string> found = sharding_causes(pairs).size() == 2
                                             ? present_causes(pairs, pairs.sharding)
                                             : std::vector<std::string>{};
  EXPECT_EQ(found, (std::vector<std::string>{"batch_wise", "token_mean"}));
  for (const std::string& cause : cause_names())
    EXPECT_NE(std::ranges::find(reached, cause), reached.end()) << cause << " has no key";
}

TEST(ScenarioCauses, TheCureIsASettingToo) {
  for (const Setting& setting : settings()) {
    const Experiment e = with(setting.keys);
    const Overrides cure = cure_settings(e, setting.cause);
    ASSERT_FALSE(cure.empty()) << setting.cause;
    Overrides both = setting.keys;
    both.insert(both.end(), cure.begin(), cure.end());
    const Experiment cured = with(both);
    EXPECT_TRUE(present_causes(cured, cured.sharding).empty()) << setting.cause;
  }
}

TEST(ScenarioCauses, AWrongWordIsRefusedWithTheAllowedOnes) {
  const auto refused = load_scenario("digits_mlp", {{"tpu.reduction", "nome"}});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("mean, sum, none"), std::string::npos)
      << refused.error().message();
}

// A setting that is not given leaves the digest of a scenario as it was before the key came.
TEST(ScenarioCauses, DefaultsAreNotPartOfTheDigest) {
  const auto digest_with = [](const Overrides& o) {
    return scenario_digest(tiny::must(load_scenario("digits_mlp", o)));
  };
  const Digest plain = digest_with({});
  for (const auto& [key, value] : Overrides{{"tpu.scaling", "by_reduction"},
                                            {"tpu.l2_terms", "by_reduction"},
                                            {"tpu.shards", "own"},
                                            {"tpu.remainder", "real"},
                                            {"tpu.streams", "global"},
                                            {"tpu.rate_scaling", "none"},
                                            {"tpu.statistics", "as_normalised"},
                                            {"tpu.slow_core", "3"},
                                            {"tpu.link_factor", "2"}})
    EXPECT_EQ(digest_with({{key, value}}), plain) << key;
  for (const auto& [key, value] :
       Overrides{{"tpu.scaling", "never"}, {"tpu.shards", "first"}, {"tpu.reduction", "none"}})
    EXPECT_NE(digest_with({{key, value}}), plain) << key;
}

Report diagnosed(const Overrides& overrides) {
  const Folder folder;
  DiagnoseOptions options;
  options.directory = folder / "out";
  options.command = "twinrun diagnose tiny";
  return tiny::must(diagnose(tiny::scenario(tiny::kDense, overrides), options, nullptr, nullptr))
      .report;
}

// Without CrossShardOptimizer each core goes its own way, and the weights of core 0 are kept.
TEST(ScenarioCauses, AMissingAllReduceIsNamed) {
  const Report r = diagnosed({{"train.steps", "20"}, {"tpu.reduction", "none"}});
  EXPECT_EQ(r.verdict, VerdictClass::kSharding) << r.headline;
  ASSERT_FALSE(r.findings.empty());
  EXPECT_EQ(r.findings.front().cause, "no_all_reduce") << r.findings.front().cause;
  const Report healthy = diagnosed({{"train.steps", "20"}});
  const auto run = [](const Report& of, const char* name) {
    return *std::ranges::find(of.runs, name, &RunSummary::name);
  };
  EXPECT_EQ(run(r, "R").core_digests, run(healthy, "R").core_digests)
      << "the reference is not affected";
  EXPECT_NE(run(r, "T").core_digests, run(healthy, "T").core_digests);
}

}  // namespace
}  // namespace twinrun
