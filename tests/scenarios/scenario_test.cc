// Tests scenarios: defaults, overrides, the resolved text, digests, the library and the table of
// keys.
#include "scenarios/scenario.h"

#include <gtest/gtest.h>

#include <fstream>

#include "scenarios/keys.h"
#include "scenarios/library.h"
#include "scenarios/suggest.h"
#include "tests/support/folder.h"

namespace twinrun {
namespace {

constexpr std::string_view kSmall = R"(
[[model.layers]]
kind = "conv2d"
filters = 4
kernel = 3
[[model.layers]]
kind = "conv2d"
name = "second"
filters = 4
kernel = 3
[[model.layers]]
kind = "conv2d"
filters = 8
kernel = 3
[[model.layers]]
kind = "max_pool"
window = 3
[[model.layers]]
kind = "dense"
units = 10
[train]
batch = 64
steps = 20
)";

Scenario parse(std::string_view text, const Overrides& sets = {}) {
  auto scenario = parse_scenario(text, "dir/small.toml", sets);
  EXPECT_TRUE(scenario.ok()) << scenario.error().message();
  return scenario.ok() ? *scenario : Scenario{};
}

TEST(Scenario, FillsInDefaults) {
  const Scenario s = parse(kSmall);
  EXPECT_EQ(s.name, "small");
  EXPECT_EQ(s.file, "dir/small.toml");
  EXPECT_EQ(s.data.train, 4096);
  EXPECT_EQ(s.data.eval, 1024);
  EXPECT_EQ(s.data.shape, (Dims{28, 28, 1}));
  ASSERT_EQ(s.model.layers.size(), 5u);
  EXPECT_EQ(s.model.layers[0].name, "conv1");
  EXPECT_EQ(s.model.layers[1].name, "second");
  EXPECT_EQ(s.model.layers[2].name, "conv3");
  EXPECT_EQ(s.model.layers[0].stride, 1);
  EXPECT_EQ(s.model.layers[3].name, "max_pool1");
  EXPECT_EQ(s.model.layers[3].stride, 3);
  EXPECT_EQ(s.model.layers[0].line, 2);
  EXPECT_EQ(s.tpu.cores, 8);
}

TEST(Scenario, LibraryParsesAndRoundTrips) {
  ASSERT_FALSE(library_files().empty());
  for (const LibraryFile& file : library_files()) {
    SCOPED_TRACE(std::string(file.name));
    const auto scenario = load_scenario(file.name);
    ASSERT_TRUE(scenario.ok()) << scenario.error().message();
    EXPECT_EQ(scenario->name, file.name);
    EXPECT_FALSE(scenario->description.empty());
    const std::string text = resolved_toml(*scenario);
    const auto again = parse_scenario(text, "resolved.toml");
    ASSERT_TRUE(again.ok()) << again.error().message() << "\n" << text;
    EXPECT_EQ(resolved_toml(*again), text);
    EXPECT_EQ(scenario_digest(*again), scenario_digest(*scenario));
  }
}

TEST(Scenario, OddValuesRoundTrip) {
  const Scenario s = parse(kSmall, {{"optimizer.lr", "0.1234567890123456789"},
                                    {"description", "'say \"hi\" \\ and\ttab'"},
                                    {"diagnose.margin", "1e-300"},
                                    {"seed", "9223372036854775807"}});
  EXPECT_EQ(s.optimizer.lr, 0.1234567890123456789);
  const Scenario again = parse(resolved_toml(s));
  EXPECT_EQ(again.optimizer.lr, s.optimizer.lr);
  EXPECT_EQ(again.description, s.description);
  EXPECT_EQ(again.diagnose.margin, 1e-300);
  EXPECT_EQ(again.seed, 9223372036854775807u);
}

TEST(Scenario, Overrides) {
  const Scenario s = parse(kSmall, {{"train.steps", "7"},
                                    {"tpu.cores", "4"},
                                    {"loss.reduction", "sum"},
                                    {"optimizer.kind", "\"adam\""},
                                    {"model.layers.second.filters", "5"},
                                    {"model.layers.conv3.bias", "false"},
                                    {"model.layers.4.units", "12"},
                                    {"diagnose.probe", "5"},
                                    {"name", "2024"},
                                    {"train.steps", "9"}});
  EXPECT_EQ(s.train.steps, 9) << "the last one counts";
  EXPECT_EQ(s.tpu.cores, 4);
  EXPECT_EQ(s.loss.reduction, LossReduction::kSum);
  EXPECT_EQ(s.optimizer.kind, "adam");
  EXPECT_EQ(s.model.layers[1].filters, 5);
  EXPECT_FALSE(s.model.layers[2].bias);
  EXPECT_EQ(s.model.layers[4].units, 12);
  EXPECT_EQ(s.diagnose.probe, "5");
  EXPECT_EQ(s.name, "2024");
}

// The value of an override must not introduce further keys.
TEST(Scenario, OverrideIsOneValue) {
  const Scenario s = parse(kSmall, {{"description", "1\nseed = 5"}});
  EXPECT_EQ(s.description, "1\nseed = 5");
  EXPECT_EQ(s.seed, 0u);
}

TEST(Scenario, OverriddenKindDropsTheFilesKeysOfTheOldKind) {
  const std::string text = std::string(kSmall) + "[optimizer]\nkind = \"adam\"\nbeta1 = 0.5\n";
  const Scenario s = parse(text, {{"optimizer.kind", "sgd"}});
  EXPECT_EQ(s.optimizer.beta1, OptimizerConfig{}.beta1);
}

TEST(Scenario, SchedulesResolveToThemselves) {
  for (const Overrides& set :
       {Overrides{{"optimizer.schedule", "piecewise"},
                  {"optimizer.boundaries", "[100, 2000]"},
                  {"optimizer.values", "[1e-3, 0]"},
                  {"optimizer.warmup_steps", "10"}},
        Overrides{{"optimizer.schedule", "cosine"}, {"optimizer.alpha", "0.1"}},
        Overrides{{"optimizer.schedule", "polynomial"}, {"optimizer.cycle", "true"}},
        Overrides{{"optimizer.schedule", "exponential"}, {"optimizer.staircase", "true"}}}) {
    const Scenario s = parse(kSmall, set);
    const Scenario again = parse(resolved_toml(s));
    EXPECT_EQ(resolved_toml(again), resolved_toml(s));
    EXPECT_EQ(scenario_digest(again), scenario_digest(s));
    EXPECT_EQ(again.optimizer.boundaries, s.optimizer.boundaries);
    EXPECT_EQ(again.optimizer.values, s.optimizer.values);
    EXPECT_NE(scenario_digest(s), scenario_digest(parse(kSmall)));
  }
  const Scenario s = parse(kSmall, {{"optimizer.schedule", "piecewise"},
                                    {"optimizer.boundaries", "[100, 2000]"},
                                    {"optimizer.values", "[1e-3, 0]"}});
  EXPECT_EQ(s.optimizer.boundaries, (Dims{100, 2000}));
  EXPECT_EQ(s.optimizer.values, (std::vector<double>{1e-3, 0}));
}

TEST(Scenario, DigestIsOfWhatDecidesTheBits) {
  const Digest base = scenario_digest(parse(kSmall));
  EXPECT_EQ(scenario_digest(parse(kSmall, {{"name", "other"}, {"description", "x"}})), base);
  EXPECT_EQ(scenario_digest(parse(kSmall, {{"data.prefetch", "0"}})), base);
  EXPECT_NE(scenario_digest(parse(kSmall, {{"seed", "1"}})), base);
  EXPECT_NE(scenario_digest(parse(kSmall, {{"model.layers.dense1.units", "11"}})), base);
  EXPECT_EQ(scenario_digest(parse(kSmall, {{"data.train", "4096"}})), base)
      << "a default written out";
}

TEST(Scenario, UnknownNamesListTheLibrary) {
  const auto missing = load_scenario("digits_cn");
  ASSERT_FALSE(missing.ok());
  EXPECT_EQ(missing.error().fix, "did you mean \"digits_cnn\"?");
  EXPECT_NE(missing.error().what.find("digits_mlp"), std::string::npos);
  const auto path = load_scenario("/nowhere/digits_cnn.toml");
  ASSERT_FALSE(path.ok());
  EXPECT_EQ(path.error().where, "/nowhere/digits_cnn.toml");
  EXPECT_TRUE(path.error().what.starts_with("no such file"));
  EXPECT_FALSE(load_scenario("/").ok());
}

TEST(Scenario, ReadsFiles) {
  const Folder folder;
  std::ofstream(folder / "small.toml") << kSmall;
  const auto scenario = load_scenario(folder / "small.toml");
  ASSERT_TRUE(scenario.ok()) << scenario.error().message();
  EXPECT_EQ(scenario->name, "small");
}

// docs/reference/scenarios.md is generated from this table, so a key that is missing here is
// missing there.
TEST(Scenario, KeyTableNamesEveryKey) {
  const std::string table = key_table_markdown();
  for (const char* key :
       {"`seed`", "`data.drop_remainder`", "`units`", "`loss.reduction`", "`optimizer.lr`",
        "`train.batch`", "`tpu.batchnorm`", "`diagnose.probe`"}) {
    EXPECT_NE(table.find(key), std::string::npos) << key;
  }
}

TEST(Suggest, OnlyTypos) {
  EXPECT_EQ(suggested("bacth", {"steps", "batch"}), "did you mean \"batch\"?");
  EXPECT_EQ(suggested("BATCH", {"steps", "batch"}), "did you mean \"batch\"?");
  EXPECT_EQ(suggested("zebra", {"steps", "batch"}), "");
  EXPECT_EQ(suggested("x", {}), "");
}

}  // namespace
}  // namespace twinrun
