// Tests the training steps that JAX exported, on one device and on eight: after import, their loss
// and state are compared with what JAX itself computed. The bound is that of
// docs/method/numerics.md, "Parity": as far from the binary64 result as conforming f32
// implementations, drawn at random, are. Also tests that our own exported steps can be imported.
#include "harness/experiment/imported.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "backends/registry.h"
#include "checkpoints/interchange/weights.h"
#include "harness/foreign/export_step.h"
#include "tests/parity/rounding_noise.h"
#include "tests/support/folder.h"
#include "tests/support/jax_steps.h"

namespace twinrun::parity {
namespace {

using Values = std::map<std::string, std::vector<double>>;

// A state variable as the user sees it, of which each core may hold a part.
std::vector<double> whole_of(const Experiment& e, const StateVar& var, const States& states,
                             size_t i) {
  const auto part = e.imported->parts.find(var.name);
  if (part == e.imported->parts.end()) return as_doubles(states[0].vars[i]);
  // An array of positions, cut as the state was, says where each element of a part belongs.
  const Dims& dims = part->second.whole;
  Tensor places = Tensor::zeros({DType::kI32, dims});
  std::iota(places.as<int32_t>().begin(), places.as<int32_t>().end(), 0);
  std::vector<double> out(static_cast<size_t>(places.elements()), NAN);
  for (size_t core = 0; core < states.size(); ++core) {
    const Tensor at = part_of(places, part->second, var.type.dims, core);
    const std::vector<double> values = as_doubles(states[core].vars[i]);
    for (size_t k = 0; k < values.size(); ++k)
      out[static_cast<size_t>(at.as<int32_t>()[k])] = values[k];
  }
  return out;
}

// The loss of every step, and the state and other outputs after the last one, under the names of
// expected.npz.
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
    out[program.state[i].name] = whole_of(e, program.state[i], states, i);
  return out;
}

// The largest difference of two elements. NaN on both sides counts as equal, NaN on one as
// infinite.
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

// The binary64 result, and the results of conforming f32 implementations, drawn at random.
struct Conforming {
  Values truth;
  std::vector<Values> drawn;
  // Six draws underestimate the largest possible distance, so four times theirs is allowed, plus
  // the rounding of the compared values.
  double allowed(const std::string& name) const {
    constexpr double kFactor = 4;
    double spread = 0;
    for (const Values& v : drawn) spread = std::max(spread, distance(v.at(name), truth.at(name)));
    return kFactor * spread + 0x1p-23 * size(truth.at(name));
  }
};

Conforming conforming_of(const Experiment& e) {
  constexpr int kMembers = 6;
  Conforming out{run(e, "cpu:f64", nullptr), {}};
  for (int m = 0; m < kMembers; ++m) {
    RoundingNoise noise(static_cast<uint32_t>(m), nullptr);
    out.drawn.push_back(run(e, "cpu", &noise));
  }
  return out;
}

// Other texts of a step have its name with an ending, and its files.
ProgramFiles request_of(const std::string& name) {
  std::string stem = name.substr(0, name.rfind('.'));
  for (const std::string_view ending : {"_gspmd", "_spmd"}) {
    if (stem.ends_with(ending)) stem.resize(stem.size() - ending.size());
  }
  return {jax_step(name),
          jax_step(stem + ".json"),
          jax_step(stem + ".state.npz"),
          jax_step(stem + ".batch.npz"),
          {}};
}

class Imported : public testing::TestWithParam<const char*> {};

TEST_P(Imported, IsWhatJaxComputes) {
  TWINRUN_NEEDS_JAX_STEP(GetParam());
  const ProgramFiles request = request_of(GetParam());
  const std::string stem = request.binding.substr(0, request.binding.rfind('.'));
  const auto e = import_experiment(request);
  ASSERT_TRUE(e) << e.error().message();
  const auto expected = read_foreign_weights(stem + ".expected.npz");
  ASSERT_TRUE(expected) << expected.error().message();
  const Conforming conforming = conforming_of(*e);
  const Values ours = run(*e, "cpu", nullptr);
  const bool steps = std::string_view(GetParam()).starts_with("forms_integers");
  size_t compared = 0;
  for (NamedArray array : expected->arrays) {
    // The bits of u32 are those of the program's i32.
    if (array.type == ElementType::kU32) array.type = ElementType::kI32;
    ASSERT_TRUE(conforming.truth.contains(array.name)) << array.name;
    const auto tensor = to_tensor(array,
                                  array.type == ElementType::kBool  ? DType::kPred
                                  : array.type == ElementType::kF32 ? DType::kF32
                                                                    : DType::kI32,
                                  stem);
    ASSERT_TRUE(tensor) << array.name;
    const std::vector<double>& exact = conforming.truth.at(array.name);
    const double allowed = conforming.allowed(array.name);
    EXPECT_LE(distance(as_doubles(*tensor), exact), allowed) << "JAX: " << array.name;
    EXPECT_LE(distance(ours.at(array.name), exact), allowed) << "cpu: " << array.name;
    // Integers have no rounding; random bits are among them.
    if (array.type != ElementType::kF32) {
      EXPECT_EQ(distance(ours.at(array.name), as_doubles(*tensor)), 0) << array.name;
    }
    // A bound that admits everything shows nothing. It does where noise crosses a step: at whole
    // numbers, in the order of a sort. There both must agree to the rounding of two results. Adding
    // one number to all scores of a query changes no softmax, so the gradient of the keys' bias is
    // nothing but rounding, and Adam scales it to the size of a step.
    const bool informs = allowed <= 1e-3 * std::max(1.0, size(exact));
    if (steps && !informs) {
      EXPECT_LE(distance(ours.at(array.name), as_doubles(*tensor)), 0x1p-23 * size(exact))
          << array.name;
    } else if (!array.name.ends_with("/key/bias")) {
      EXPECT_TRUE(informs) << array.name << ": " << allowed << " of " << size(exact);
    }
    ++compared;
  }
  EXPECT_GE(compared, e->imported->step.state.size() + 1);
}

const auto text_name = [](const auto& test) {
  std::string name = test.param;
  std::ranges::replace(name, '.', '_');
  return name;
};

// erfc and erf_inv are one op in StableHLO, and XLA's expansion of them in HLO text, so both files
// are tested where they occur. The texts of the other steps are the same op for op (BothTexts);
// models of other libraries have one text.
INSTANTIATE_TEST_SUITE_P(, Imported,
                         testing::Values("mlp_sgd.hlo", "mlp_momentum.hlo", "mlp_adam.hlo",
                                         "cnn_max_pool.hlo", "cnn_batch_norm.hlo",
                                         "cnn_strided.hlo", "layer_norm_mlp.hlo", "transformer.hlo",
                                         "transformer.mlir", "embedding_bag.hlo", "recurrent.hlo",
                                         "forms.hlo"),
                         text_name);

INSTANTIATE_TEST_SUITE_P(FromJax, Imported,
                         testing::Values("forms_random.hlo", "forms_random.mlir",
                                         "forms_integers.hlo", "forms_integers.mlir",
                                         "forms_loops.hlo", "forms_windows.hlo",
                                         "forms_convolutions.hlo", "flax_cnn.mlir",
                                         "flax_transformer.mlir", "haiku_mlp.mlir",
                                         "equinox_mlp.mlir", "flax_lstm.mlir", "flax_vit.mlir",
                                         "flax_unet.mlir", "flax_gan.mlir", "skip_gram.mlir",
                                         "flax_moe.mlir", "diffusion.mlir", "scanned_layers.mlir"),
                         text_name);

INSTANTIATE_TEST_SUITE_P(Sharded, Imported,
                         testing::Values("shard_mean.hlo", "shard_batch_norm.hlo",
                                         "shard_tensor.hlo", "shard_tensor_gspmd.hlo",
                                         "shard_tensor_spmd.hlo", "shard_fsdp.hlo",
                                         "shard_experts.hlo", "shard_pipeline.hlo", "pmap_mean.hlo",
                                         "jit_named.hlo", "shard_forms.hlo"),
                         text_name);

class BothTexts : public testing::TestWithParam<const char*> {};

TEST_P(BothTexts, HaveTheSameBits) {
  const std::string name = GetParam();
  TWINRUN_NEEDS_JAX_STEP(name + ".hlo");
  const auto hlo = import_experiment(request_of(name + ".hlo")),
             mlir = import_experiment(request_of(name + ".mlir"));
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

INSTANTIATE_TEST_SUITE_P(FromJax, BothTexts,
                         testing::Values("forms_loops", "forms_windows", "forms_convolutions"),
                         [](const auto& test) { return std::string(test.param); });

INSTANTIATE_TEST_SUITE_P(Sharded, BothTexts,
                         testing::Values("shard_mean", "shard_batch_norm", "shard_tensor",
                                         "shard_tensor_gspmd", "shard_fsdp", "shard_experts",
                                         "shard_pipeline", "pmap_mean", "pmap_mean_gspmd",
                                         "jit_named", "shard_forms"),
                         [](const auto& test) { return std::string(test.param); });

class Exported : public testing::TestWithParam<const char*> {};

// A step of ours is exported as text and imported again. The bits are the same, because each op
// that is expanded in StableHLO is recognised as the original op. The exceptions are gradients of
// grouped convolutions and of mean pools: they come back as other ops, which add in another order,
// so they must lie as close to the binary64 result as conforming f32 implementations do.
TEST_P(Exported, ComesBack) {
  const std::string name = GetParam();
  const bool same_ops = name != "drill_depthwise" && name != "drill_cnn";
  const auto scenario = load_scenario(name, {});
  ASSERT_TRUE(scenario) << scenario.error().message();
  const auto e = make_experiment(*scenario);
  ASSERT_TRUE(e) << e.error().message();
  const Folder outer;
  const std::string folder = outer / "exported";
  const auto files = export_step(*e, e->whole(), {.folder = folder});
  ASSERT_TRUE(files) << files.error().message();
  const auto back = import_experiment({.program = folder + "/step.mlir"});
  ASSERT_TRUE(back) << back.error().message();
  const auto expected = read_foreign_weights(folder + "/results.safetensors");
  ASSERT_TRUE(expected) << expected.error().message();
  const Values ours = run(*back, "cpu", nullptr);
  const Conforming conforming = same_ops ? Conforming{} : conforming_of(*back);
  size_t compared = 0;
  for (const NamedArray& array : expected->arrays) {
    const std::string as = array.name == "output/loss" ? "loss" : array.name;
    if (!ours.contains(as)) continue;  // other outputs have no names in the text
    const auto tensor =
        to_tensor(array, array.type == ElementType::kI32 ? DType::kI32 : DType::kF32, folder);
    ASSERT_TRUE(tensor) << array.name;
    const std::vector<double> given = as_doubles(*tensor);
    if (same_ops) {
      EXPECT_EQ(distance(ours.at(as), given), 0) << as;
    } else {
      EXPECT_LE(distance(given, conforming.truth.at(as)), conforming.allowed(as)) << as;
      EXPECT_LE(distance(ours.at(as), conforming.truth.at(as)), conforming.allowed(as)) << as;
    }
    ++compared;
  }
  EXPECT_EQ(compared, back->imported->step.state.size() + 1);
}

INSTANTIATE_TEST_SUITE_P(, Exported,
                         testing::Values("digits_mlp", "digits_cnn", "mlp_bn", "drill_attention",
                                         "drill_dropout", "drill_triplet", "drill_cnn",
                                         "drill_depthwise"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace twinrun::parity
