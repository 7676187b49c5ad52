// Tests the axis of scenario keys: which keys differ, what a subset of them gives, and which of
// them matter.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include "harness/bisect/scenarios.h"
#include "tests/harness/tiny.h"

namespace twinrun::bisect {
namespace {

using tiny::must;

std::vector<std::string> keys_of(const std::vector<KeyChange>& changes) {
  std::vector<std::string> keys;
  for (const KeyChange& c : changes) keys.push_back(c.key);
  return keys;
}

TEST(BisectKeys, AreThoseThatDiffer) {
  const Scenario a = tiny::scenario(tiny::kDense);
  EXPECT_TRUE(key_changes(a, a).empty());
  const Scenario b = tiny::scenario(tiny::kDense, {{"seed", "4"},
                                                   {"model.layers.dense1.units", "9"},
                                                   {"train.steps", "5"},
                                                   {"optimizer.kind", "momentum"},
                                                   {"optimizer.momentum", "0.8"},
                                                   {"description", "another"}});
  const std::vector<KeyChange> changes = key_changes(a, b);
  EXPECT_EQ(keys_of(changes), (std::vector<std::string>{"seed", "model.layers.dense1.units",
                                                        "optimizer.kind", "train.steps"}));
  EXPECT_EQ(changes[0].settings(), std::vector<std::string>{"seed=4"});
  // Keys that only the other kind has come along with the change of kind.
  const auto settings = changes[2].settings();
  EXPECT_EQ(settings[0], "optimizer.kind=momentum");
  EXPECT_NE(std::ranges::find(settings, "optimizer.momentum=0.8"), settings.end());
  EXPECT_EQ(resolved_toml(must(with_changes(a, changes, {}))), resolved_toml(a));
  const Scenario kind = must(with_changes(a, changes, {2}));
  EXPECT_EQ(kind.optimizer.momentum, 0.8);
  EXPECT_EQ(kind.seed, a.seed);
  EXPECT_EQ(scenario_digest(must(with_changes(a, changes, {0, 1, 2, 3}))), scenario_digest(b));
  // And back: keys that the simpler kind does not have are removed.
  const auto back = key_changes(b, a);
  EXPECT_EQ(scenario_digest(must(with_changes(b, back, {0, 1, 2, 3}))), scenario_digest(a));
}

TEST(BisectKeys, OtherLayersAreOneChange) {
  const Scenario a = tiny::scenario(tiny::kDense), b = tiny::scenario(tiny::kNormalized);
  const auto changes = key_changes(a, b);
  ASSERT_EQ(keys_of(changes), std::vector<std::string>{"model.layers"});
  // The setting has the form that --set takes.
  const std::string setting = changes[0].settings()[0];
  const size_t equals = setting.find('=');
  const Scenario set =
      tiny::scenario(tiny::kDense, {{setting.substr(0, equals), setting.substr(equals + 1)}});
  EXPECT_EQ(scenario_digest(set), scenario_digest(b));
}

TEST(BisectKeys, CombinationsAreChecked) {
  const Scenario a = tiny::scenario(tiny::kDense);
  const Scenario b = tiny::scenario(tiny::kDense, {{"train.batch", "36"}, {"tpu.cores", "6"}});
  const auto changes = key_changes(a, b);
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_FALSE(with_changes(a, changes, {1}).ok());  // 32 samples on 6 cores
  EXPECT_TRUE(with_changes(a, changes, {0, 1}).ok());
}

// kIdle: keys without influence on the last state of a run on the emulator. kAtWork: keys that have
// one.
const Overrides kIdle = {
    {"train.log_every", "3"},   {"train.eval_every", "5"}, {"train.checkpoint_every", "7"},
    {"diagnose.margin", "0.5"}, {"diagnose.seeds", "4"},   {"diagnose.probe", "auto"},
    {"data.prefetch", "0"},     {"tpu.poison", "true"},    {"data.eval", "100"},
    {"diagnose.ensemble", "6"}};
const Overrides kAtWork = {{"seed", "9"},
                           {"optimizer.lr", "0.07"},
                           {"optimizer.momentum", "0.8"},
                           {"train.steps", "15"},
                           {"tpu.precision", "high"},
                           {"loss.smoothing", "0.1"},
                           {"model.layers.dense1.units", "30"},
                           {"data.shuffle", "false"},
                           {"tpu.cores", "4"}};

// 16 of the 50 planted differences of the three axes (the others: bisect_axes_test.cc).
TEST(BisectConfigSlow, SixteenPlantedSetsOfKeysAreFound) {
  std::mt19937 random(7);
  const Scenario a = must(load_scenario("drill_mlp", {{"diagnose.probe", "every"}}));
  for (int trial = 0; trial < 16; ++trial) {
    Overrides overrides;
    std::set<std::string> expected;
    for (const auto& idle : kIdle) {
      if (random() % 3 != 0) overrides.push_back(idle);
    }
    const size_t wanted = 1 + random() % 3;
    while (expected.size() < wanted) {
      const auto& [key, value] = kAtWork[random() % kAtWork.size()];
      if (expected.insert(key).second) overrides.emplace_back(key, value);
    }
    const Scenario b = must(load_scenario("drill_mlp", overrides));
    const Folder folder;
    ScenarioOptions o;
    o.test = ScenarioOptions::Test::kDigest;
    o.folder = folder / "out";
    o.repeats = {.agree = 1};
    const ScenariosFound f = must(bisect_scenarios(a, b, o, nullptr, nullptr));
    ASSERT_EQ(f.set.end, Found::End::kFound) << f.set.why;
    std::set<std::string> found;
    for (const int i : f.set.changes) found.insert(f.changes[static_cast<size_t>(i)].key);
    EXPECT_EQ(found, expected) << trial;
    EXPECT_LE(f.set.testable, f.set.bound);
    const double n = static_cast<double>(f.changes.size()),
                 k = static_cast<double>(expected.size());
    EXPECT_LE(static_cast<double>(f.set.testable), 2 + k * (std::ceil(std::log2(n + 1)) + 2));
    EXPECT_EQ(scenario_digest(must(load_scenario(f.bad_file))),
              scenario_digest(must(with_changes(a, f.changes, f.set.changes))));
  }
}

}  // namespace
}  // namespace twinrun::bisect
