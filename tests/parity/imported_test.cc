// Ten training steps that JAX exported, imported and run: loss and state against what JAX itself computed. The bound is that of
// docs/parity.md: as far from the binary64 result as honest f32 implementations, drawn at random, are.
#include "harness/imported.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "checkpoints/interchange/weights.h"
#include "tests/parity/rounding_noise.h"

namespace twinrun::parity {
namespace {

const std::string kFixtures = TWINRUN_SOURCE_DIR "/tests/program/import/fixtures/";

using Values = std::map<std::string, std::vector<double>>;

// Loss of every step, the state after the last one, its other results: under the names of expected.npz.
Values run(const Experiment& e, const std::string& engine_name, OpHooks* hooks) {
  const Program program = e.whole();
  BackendOptions options;
  const auto backend = make_backend(engine_name, options);
  const auto engine = (*backend)->prepare(program);
  EXPECT_TRUE(engine) << engine.error().message();
  States states = initial_states(e, program);
  StepFeed feed(e, program);
  Values out;
  for (int64_t step = 0; step < e.scenario.train.steps; ++step) {
    StepOutputs outputs;
    const Status done = (*engine)->step(step, states, *feed.inputs(step), outputs, nullptr, hooks);
    EXPECT_TRUE(done) << done.error().message();
    for (size_t i = 0; i < program.outputs.size(); ++i) {
      const std::vector<double> values = as_doubles(outputs[0][i]);
      if (program.outputs[i].name == "loss")
        out["loss"].push_back(values[0]);
      else
        out[program.outputs[i].name] = values;
    }
  }
  for (size_t i = 0; i < program.state.size(); ++i)
    out[program.state[i].name] = as_doubles(states[0].vars[i]);
  return out;
}

// The largest distance; what is no number on both sides is no distance.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    const double d = std::fabs(a[i] - b[i]);
    most = std::isnan(d) ? INFINITY : std::max(most, d);
  }
  return most;
}

double size(const std::vector<double>& a) { return distance(a, std::vector<double>(a.size(), 0)); }

class Imported : public testing::TestWithParam<const char*> {};

TEST_P(Imported, IsWhatJaxComputes) {
  const std::string program = kFixtures + GetParam(), stem = program.substr(0, program.rfind('.'));
  const auto e = import_experiment({.program = program});
  ASSERT_TRUE(e) << e.error().message();
  const auto expected = read_foreign_weights(stem + ".expected.npz");
  ASSERT_TRUE(expected) << expected.error().message();
  const Values truth = run(*e, "cpu:f64", nullptr), ours = run(*e, "cpu", nullptr);
  constexpr int kMembers = 6;
  std::vector<Values> honest;
  for (int m = 0; m < kMembers; ++m) {
    RoundingNoise noise(static_cast<uint32_t>(m), nullptr);
    honest.push_back(run(*e, "cpu", &noise));
  }
  // Six draws show less than the largest that there is: four times it, and the rounding of what is compared.
  constexpr double kFactor = 4;
  size_t compared = 0;
  for (const NamedArray& array : expected->arrays) {
    ASSERT_TRUE(truth.contains(array.name)) << array.name;
    const auto tensor = to_tensor(array,
                                  array.type == ElementType::kBool  ? DType::kPred
                                  : array.type == ElementType::kI32 ? DType::kI32
                                                                    : DType::kF32,
                                  stem);
    ASSERT_TRUE(tensor) << array.name;
    const std::vector<double>& exact = truth.at(array.name);
    double spread = 0;
    for (const Values& h : honest) spread = std::max(spread, distance(h.at(array.name), exact));
    const double allowed = kFactor * spread + 0x1p-23 * size(exact);
    EXPECT_LE(distance(as_doubles(*tensor), exact), allowed) << "JAX: " << array.name;
    EXPECT_LE(distance(ours.at(array.name), exact), allowed) << "cpu: " << array.name;
    // A bound that lets everything through shows nothing.
    EXPECT_LE(allowed, 1e-3 * std::max(1.0, size(exact))) << array.name;
    ++compared;
  }
  EXPECT_GE(compared, e->imported->step.state.size() + 1);
}

// In StableHLO the transformer's erfc is one op, in HLO text what XLA makes of it; all else is the same, op for op (BothTexts).
INSTANTIATE_TEST_SUITE_P(, Imported,
                         testing::Values("mlp_sgd.hlo", "mlp_momentum.hlo", "mlp_adam.hlo",
                                         "cnn_max_pool.hlo", "cnn_batch_norm.hlo",
                                         "cnn_strided.hlo", "layer_norm_mlp.hlo", "transformer.hlo",
                                         "transformer.mlir", "embedding_bag.hlo", "recurrent.hlo",
                                         "forms.hlo"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

class BothTexts : public testing::TestWithParam<const char*> {};

TEST_P(BothTexts, HaveTheSameBits) {
  const std::string stem = kFixtures + GetParam();
  const auto hlo = import_experiment({.program = stem + ".hlo"}),
             mlir = import_experiment({.program = stem + ".mlir"});
  ASSERT_TRUE(hlo) << hlo.error().message();
  ASSERT_TRUE(mlir) << mlir.error().message();
  for (const char* engine : {"cpu", "tpu"}) {
    const Values a = run(*hlo, engine, nullptr), b = run(*mlir, engine, nullptr);
    ASSERT_EQ(a.size(), b.size());
    for (const auto& [name, values] : a) EXPECT_EQ(distance(values, b.at(name)), 0) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(, BothTexts,
                         testing::Values("mlp_sgd", "mlp_momentum", "mlp_adam", "cnn_max_pool",
                                         "cnn_batch_norm", "cnn_strided", "layer_norm_mlp",
                                         "embedding_bag", "recurrent", "forms"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace twinrun::parity
