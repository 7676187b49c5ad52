// Tests that the bits of training do not change, for every library scenario that needs no file of
// the user's: its initial checkpoint and the state after 20 steps on the cpu (whole and sharded)
// and on the emulated TPU.
//
// A digest that changes is a decision about the numeric contract (docs/method/numerics.md), never a
// refresh: whoever trained before gets other bits from now on. TWINRUN_UPDATE_GOLDEN=1 rewrites the
// table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

#include "program/graph/liveness.h"
#include "scenarios/library.h"
#include "tests/harness/tiny.h"
#include "tests/support/isa_scope.h"

namespace twinrun {
namespace {

const char* const kTable = TWINRUN_SOURCE_DIR "/tests/golden/runs/digests.txt";
// Two steps of a heavy scenario show what its ops do. The heaviest are not repeated for every
// setting.
constexpr int64_t kSteps = 20, kHeavySteps = 2;
constexpr double kMediumFlops = 1e9, kHeavyFlops = 5e9, kHeaviestFlops = 1e11;  // per step

// "digits_mlp T" -> "after 20 steps: 0123..."
using Table = std::map<std::string, std::string>;

Table read_table() {
  Table table;
  std::ifstream in(kTable);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string scenario, corner, rest;
    if (line.empty() || line[0] == '#' || !(words >> scenario >> corner)) continue;
    std::getline(words >> std::ws, rest);
    table[scenario + " " + corner] = rest;
  }
  return table;
}

void write_table(const Table& table) {
  std::ofstream out(kTable);
  out << "# scenario, corner, state digest. Written by TWINRUN_UPDATE_GOLDEN=1; a change is a\n"
         "# decision about the numeric contract: see tests/harness/gate/golden_test.cc.\n";
  for (const auto& [key, value] : table) out << key << " " << value << "\n";
}

void expect_golden(const Table& found) {
  Table table = read_table();
  if (std::getenv("TWINRUN_UPDATE_GOLDEN") != nullptr) {
    for (const auto& [key, value] : found) table[key] = value;
    write_table(table);
    return;
  }
  for (const auto& [key, value] : found) {
    ASSERT_TRUE(table.contains(key)) << key << " is not in " << kTable;
    EXPECT_EQ(value, table[key]) << key;
  }
}

// Few samples, to be fast: only the model must be the library's.
Experiment load(const std::string& name) {
  return tiny::must(make_experiment(
      tiny::must(load_scenario(name, {{"data.train", "512"}, {"data.eval", "32"}}))));
}

// The same values at addresses that are not aligned for vectors.
States shifted(const States& states) {
  States result = states;
  for (ReplicaState& replica : result) {
    for (Tensor& t : replica.vars) {
      const auto bytes = static_cast<int64_t>(t.bytes());
      Tensor moved = Tensor::empty({DType::kPred, {bytes + 4}}).at(4, t.type());
      std::copy_n(t.raw(), t.bytes(), moved.raw());
      t = moved;
    }
  }
  return result;
}

std::vector<Digest> states_of(const Experiment& e, const std::string& engine, bool sharded,
                              int threads, int64_t steps, bool shift) {
  const Program program = tiny::program(e, sharded);
  RunOptions options;
  options.steps = steps;
  options.evaluate = false;
  if (shift) options.start = shifted(initial_states(program, e.scenario.seed));
  return tiny::must(train(e, program, *tiny::backend(engine, threads), options)).file.state_digests;
}

std::string after_training(const Experiment& e, const std::string& engine, bool sharded,
                           int threads, bool shift) {
  const int64_t steps = step_flops(e.whole()) < kHeavyFlops ? kSteps : kHeavySteps;
  const std::vector<Digest> states = states_of(e, engine, sharded, threads, steps, shift);
  return "after " + std::to_string(states.size()) + " steps: " + states.back().hex();
}

Table corners(const std::string& name, int threads, bool shift = false) {
  const Experiment e = load(name);
  const Program whole = e.whole();
  Table found;
  found[name + " init"] =
      to_checkpoint(whole, initial_states(whole, e.scenario.seed), e.scenario, 0)
          .root_digest()
          .hex();
  found[name + " R"] = after_training(e, "cpu", false, threads, shift);
  found[name + " S"] = after_training(e, "cpu", true, threads, shift);
  found[name + " T"] = after_training(e, "tpu", true, threads, shift);
  return found;
}

// Scenarios that need no file, and whose step takes from `least` to `most` FLOP.
std::vector<std::string> self_contained(double least, double most) {
  static const std::map<std::string, double> all = [] {
    std::map<std::string, double> flops;
    for (const LibraryFile& file : library_files()) {
      const Scenario s = tiny::must(parse_scenario(file.text, file.name));
      const bool procedural = s.data.source == "digits" || s.data.source == "images32" ||
                              s.data.source == "phrases" || s.data.source == "text_synthetic";
      if (procedural)
        flops[std::string(file.name)] = step_flops(load(std::string(file.name)).whole());
    }
    return flops;
  }();
  std::vector<std::string> names;
  for (const auto& [name, flops] : all) {
    if (flops >= least && flops < most) names.push_back(name);
  }
  return names;
}
constexpr double kAny = 1e30;

TEST(GoldenRuns, LightScenarios) {
  const std::vector<std::string> names = self_contained(0, kMediumFlops);
  ASSERT_GE(names.size(), 5u);
  for (const std::string& name : names) expect_golden(corners(name, 1));
}

TEST(GoldenRunsSlowHeavy, HeavyScenarios) {
  const std::vector<std::string> names = self_contained(kMediumFlops, kAny);
  ASSERT_GE(names.size(), 4u);
  for (const std::string& name : names) expect_golden(corners(name, 1));
}

// Every row of the table is tested, and none is missing.
TEST(GoldenRuns, TableIsComplete) {
  if (std::getenv("TWINRUN_UPDATE_GOLDEN") != nullptr) GTEST_SKIP() << "being rewritten";
  EXPECT_EQ(read_table().size(), 4 * self_contained(0, kAny).size());
}

// Every instruction set, every thread count and both alignments give the digests of the table.
class GoldenSettings : public testing::TestWithParam<std::tuple<Isa, int, bool>> {
 protected:
  void expect(double least, double most) {
    const auto [isa, threads, shift] = GetParam();
    const IsaScope scope(isa);
    if (!scope.there()) GTEST_SKIP() << "this CPU has no " << to_string(isa);
    for (const std::string& name : self_contained(least, most)) {
      expect_golden(corners(name, threads, shift));
    }
  }
};
class GoldenIsaRuns : public GoldenSettings {};

std::vector<Isa> vectors_and_model() {
  std::vector<Isa> list = vector_isas();
  list.push_back(Isa::kAmxModel);
  return list;
}

const auto kSettings = testing::Combine(testing::ValuesIn(vectors_and_model()),
                                        testing::Values(1, 2, 3, 8), testing::Bool());
// One setting of each instruction set runs in every suite, the others in the slow one.
std::string setting_name(const testing::TestParamInfo<std::tuple<Isa, int, bool>>& info) {
  const auto [isa, threads, shift] = info.param;
  const std::string name = isa == Isa::kAmxModel ? "amx_model" : std::string(to_string(isa));
  return name + "_" + std::to_string(threads) + (shift ? "_shifted" : "") +
         (threads == 3 && shift ? "" : "_Slow");
}

TEST_P(GoldenIsaRuns, NeverChangeABit) { expect(0, kMediumFlops); }
INSTANTIATE_TEST_SUITE_P(Settings, GoldenIsaRuns, kSettings, setting_name);

// Heavy scenarios run with every instruction set and every thread count, alternating between the
// alignments; the model of AMX runs with three threads only, and the heaviest scenarios not at all.
std::vector<std::tuple<Isa, int, bool>> settings_of_heavy_scenarios() {
  std::vector<std::tuple<Isa, int, bool>> out;
  for (Isa isa : vectors_and_model()) {
    for (int threads : {1, 2, 3, 8}) {
      for (bool shift : {false, true}) {
        const bool turn = (threads % 2 == 1) != (isa == Isa::kAvx512);
        if (shift == turn && (isa != Isa::kAmxModel || threads == 3))
          out.emplace_back(isa, threads, shift);
      }
    }
  }
  return out;
}

class GoldenHeavyRunsSlow : public GoldenSettings {};
TEST_P(GoldenHeavyRunsSlow, NeverChangeABit) { expect(kMediumFlops, kHeaviestFlops); }
INSTANTIATE_TEST_SUITE_P(Settings, GoldenHeavyRunsSlow,
                         testing::ValuesIn(settings_of_heavy_scenarios()), setting_name);

class GoldenRunsThreads : public testing::TestWithParam<int> {};
TEST_P(GoldenRunsThreads, NeverChangeABit) { expect_golden(corners("digits_mlp", GetParam())); }
INSTANTIATE_TEST_SUITE_P(Counts, GoldenRunsThreads, testing::Values(1, 2, 3, 8));

// Scalar code and the model of AMX tiles are slow and exist for proof only: five steps of each.
TEST(GoldenRunsProof, FiveSteps) {
  const Experiment e = load("digits_mlp");
  for (const auto& [engine, sharded] :
       {std::pair<const char*, bool>{"cpu", false}, {"cpu", true}, {"tpu", true}}) {
    const std::vector<Digest> fast = states_of(e, engine, sharded, 1, 5, false);
    for (Isa isa : {Isa::kScalar, Isa::kAmxModel}) {
      const IsaScope scope(isa);
      ASSERT_TRUE(scope.there());
      EXPECT_EQ(states_of(e, engine, sharded, 2, 5, false), fast)
          << engine << (sharded ? ", sharded, " : ", ") << to_string(isa);
    }
  }
}

}  // namespace
}  // namespace twinrun
