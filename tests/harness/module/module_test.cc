// Tests `diagnose MODULE --values` on the training steps that JAX exported: what JAX returned is inside, what
// conforming engines return at every step is inside, and one changed element is outside.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>

#include "backends/registry.h"
#include "checkpoints/container/safetensors.h"
#include "checkpoints/interchange/weights.h"
#include "harness/experiment/imported.h"
#include "harness/module/judge_module.h"
#include "tests/support/folder.h"
#include "tests/support/jax_steps.h"

namespace twinrun {
namespace {

// The steps of the fixtures.
constexpr const char* kSteps[] = {"cnn_batch_norm", "cnn_max_pool", "cnn_strided",
                                  "embedding_bag",  "forms",        "layer_norm_mlp",
                                  "mlp_adam",       "mlp_momentum", "mlp_sgd",
                                  "recurrent",      "transformer"};

// `t` with element `at` as little outside of `b` as can be.
Tensor changed(const Tensor& t, const Bounded& b, int64_t at) {
  Tensor out = t.clone();
  const double value = b.value.as<const double>()[static_cast<size_t>(at)];
  out.as<float>()[static_cast<size_t>(at)] =
      std::nextafter(static_cast<float>(value + 1.01 * b.radius(at)), INFINITY);
  return out;
}

TEST(Module, ConformingEnginesAreInside) {
  for (const std::string name : kSteps) {
    for (const std::string ending : {".hlo", ".mlir"}) {
      auto made = import_experiment({.program = jax_step(name + ending)});
      ASSERT_TRUE(made) << made.error().message();
      const Experiment& e = *made;
      const Program program = e.whole();
      for (const char* engine_name : {"cpu", "honest:5"}) {
        const auto backend = make_backend(engine_name, {});
        const auto engine = (*backend)->prepare(program);
        ASSERT_TRUE(engine);
        const FusedArithmetic may{.dots = (*backend)->capabilities().precision};
        States states = initial_states(e, program);
        StepFeed feed(e, program);
        for (int64_t step = 0; step < e.scenario.train.steps; ++step) {
          const auto inputs = feed.inputs(step);
          ASSERT_TRUE(inputs);
          ReplayArguments given;
          for (const Tensor& t : states[0].vars) given.state.push_back(t.clone());
          given.inputs = (*inputs)[0];
          std::vector<ValueId> wanted, all;
          for (const StateVar& v : program.state)
            wanted.push_back(v.next == kNoValue ? v.id : v.next);
          for (const Output& o : program.outputs) all.push_back(o.id);
          wanted.insert(wanted.end(), all.begin(), all.end());
          const auto r = replay_values(program, given, wanted, may, nullptr);
          ASSERT_TRUE(r) << r.error().message();
          StepOutputs outputs;
          ASSERT_TRUE((*engine)->step(step, states, *inputs, outputs));
          int64_t outside = 0, found = 0;
          const auto hold = [&](const Bounded& b, const Tensor& t) {
            const FoundVerdict v = compare(b, t);
            outside += v.outside;
            if (b.type.dtype != DType::kF32 || v.untestable > 0 || !(b.radius(0) < 1e30)) return;
            found += compare(b, changed(t, b, 0)).outside == 1 ? 0 : 1;
          };
          const size_t n = program.state.size();
          for (size_t i = 0; i < n; ++i) hold((*r)[i], states[0].vars[i]);
          for (size_t i = 0; i < all.size(); ++i) hold((*r)[n + i], outputs[0][i]);
          const auto likely = likely_values(program, given, all, may, nullptr);
          ASSERT_TRUE(likely) << likely.error().message();
          for (size_t i = 0; i < all.size(); ++i) hold((*likely)[i], outputs[0][i]);
          EXPECT_EQ(outside, 0) << name << ending << " " << engine_name << " step " << step;
          EXPECT_EQ(found, 0) << name << ": a changed element was not seen";
        }
      }
    }
  }
}

// The values of a fixture's first step as a file of safetensors: its arguments, and those results
// that JAX gave.
class Values {
 public:
  explicit Values(const std::string& name) {
    auto made = import_experiment({.program = jax_step(name + ".mlir")});
    EXPECT_TRUE(made);
    const ImportedRun& run = *made->imported;
    for (const Tensor& t : run.state) argument(t);
    for (size_t i = 0; i < run.batches[0].size(); ++i) {
      if (run.step.inputs[i].name.starts_with("literal/")) continue;
      argument(run.batches[0][i]);
    }
  }
  Values(const Values&) = delete;
  Values& operator=(const Values&) = delete;

  void argument(const Tensor& t) {
    file_.arrays.push_back(to_array(fmt::format("argument/{}", arguments_++), t));
  }
  void result(int64_t index, const Tensor& t) {
    file_.arrays.push_back(to_array(fmt::format("result/{}", index), t));
  }
  void write() const {
    const auto bytes = to_safetensors(file_, path);
    ASSERT_TRUE(bytes) << bytes.error().message();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes->data()),
               static_cast<std::streamsize>(bytes->size()));
  }
  const Folder folder;
  const std::string path = folder / "values.safetensors";

 private:
  ArrayFile file_;
  int arguments_ = 0;
};

// All results of the single ops of `forms` and its like, under their index.
std::map<int64_t, Tensor> results_of_jax(const std::string& name) {
  std::map<int64_t, Tensor> out;
  auto file = read_foreign_weights(jax_step(name + ".expected.npz"));
  EXPECT_TRUE(file);
  for (const NamedArray& array : file->arrays) {
    if (!array.name.starts_with("result")) continue;
    auto t = to_tensor(array, *natural_dtype(array.type), "expected");
    EXPECT_TRUE(t) << t.error().message();
    out[std::stoll(array.name.substr(6))] = *t;
  }
  return out;
}

class ModuleOfForms : public testing::TestWithParam<const char*> {};

TEST_P(ModuleOfForms, ResultsAreInside) {
  const std::string name = GetParam();
  TWINRUN_NEEDS_JAX_STEP(name + ".mlir");
  for (const char* ending : {".hlo", ".mlir"}) {
    Values values(name);
    const std::map<int64_t, Tensor> results = results_of_jax(name);
    ASSERT_GT(results.size(), 20u);
    for (const auto& [index, tensor] : results) values.result(index, tensor);
    values.write();
    auto v = judge_module({jax_step(name + ending), values.path}, nullptr);
    ASSERT_TRUE(v) << v.error().message();
    EXPECT_EQ(v->refused, "");
    // The fixture has neither the new parameters nor the loss: by them alone is it open.
    EXPECT_EQ(to_string(v->verdict()), "INCONCLUSIVE");
    EXPECT_EQ(v->left_out.size(), static_cast<size_t>(results.begin()->first));
    v->left_out.clear();
    EXPECT_EQ(to_string(v->verdict()), "NOISE") << name << to_json(report_of(*v));
    EXPECT_EQ(v->results.size(), results.size());
  }
}

const auto itself = [](const auto& test) { return std::string(test.param); };
INSTANTIATE_TEST_SUITE_P(, ModuleOfForms, testing::Values("forms"), itself);
INSTANTIATE_TEST_SUITE_P(FromJax, ModuleOfForms,
                         testing::Values("forms_convolutions", "forms_windows", "forms_loops"),
                         itself);

TEST(Module, OneChangedElementIsOutsideAndNamed) {
  Values values("forms");
  std::map<int64_t, Tensor> results = results_of_jax("forms");
  results[10].as<float>()[5] += 1e-3f;
  for (const auto& [index, tensor] : results) values.result(index, tensor);
  values.write();
  const auto v = judge_module({jax_step("forms.mlir"), values.path}, nullptr);
  ASSERT_TRUE(v) << v.error().message();
  EXPECT_EQ(to_string(v->verdict()), "ENGINE_BUG");
  EXPECT_EQ(v->outside(), 1);
  const auto j = nlohmann::json::parse(to_json(report_of(*v)));
  for (const auto& row : j["details"][0]["rows"]) {
    const int64_t index = row[0];
    EXPECT_EQ(row[3], index == 10 ? 1 : 0) << row;
    if (index != 10) continue;
    EXPECT_EQ(row[7], "[0,0,0,5]");
    EXPECT_NE(row[6], "");
    EXPECT_GT(row[11], 1.0);
  }
  EXPECT_NE(j["findings"][0]["elements"].get<std::string>().find("worst at [0,0,0,5]"),
            std::string::npos);
}

// The first losses that JAX computed. Intervals around the transformer's loss are 0.012 of it, those
// around that of the recurrent net, which computes in bfloat16, 0.035; all others are below 10^-4.
TEST(Module, LossesOfJaxAreInside) {
  for (const std::string name : kSteps) {
    auto file = read_foreign_weights(jax_step(name + ".expected.npz"));
    auto made = import_experiment({.program = jax_step(name + ".mlir")});
    ASSERT_TRUE(file && made);
    const auto loss = std::ranges::find(file->arrays, std::string("loss"), &NamedArray::name);
    ASSERT_NE(loss, file->arrays.end());
    const auto losses = to_tensor(*loss, DType::kF32, name);
    ASSERT_TRUE(losses);
    const ImportedRun& run = *made->imported;
    const auto r =
        replay_values(run.step, {run.state, run.batches[0], {}}, {run.step.loss}, {}, nullptr);
    ASSERT_TRUE(r) << r.error().message();
    const FoundVerdict v = compare((*r)[0], Tensor::scalar(losses->as<float>()[0]));
    EXPECT_EQ(v.outside + v.untestable, 0) << name;
    EXPECT_LT(v.median_relative_radius, name == "recurrent" ? 0.1 : 0.02) << name;
    EXPECT_EQ(compare((*r)[0], Tensor::scalar(losses->as<float>()[0] * 1.1f)).outside, 1) << name;
  }
}

TEST(Module, WhatCannotBeImportedIsRefusedWithAllReasons) {
  Values values("mlp_sgd");
  values.result(0, Tensor::scalar(1));
  values.write();
  const std::string path = values.path + ".hlo";
  std::ofstream(path) << "HloModule m\nENTRY main {\n  a = f32[0]{0} parameter(0)\n  b = f32[4]{0} "
                         "parameter(1)\n  ROOT c = f32[4]{0} custom-call(b), "
                         "custom_call_target=\"Mine\"\n}\n";
  const auto v = judge_module({path, values.path}, nullptr);
  std::filesystem::remove(path);
  ASSERT_TRUE(v) << v.error().message();
  EXPECT_NE(v->refused.find("f32[0]"), std::string::npos) << v->refused;
  EXPECT_NE(v->refused.find("Mine"), std::string::npos) << v->refused;
  EXPECT_EQ(to_string(v->verdict()), "INCONCLUSIVE");
  EXPECT_TRUE(v->results.empty());
}

}  // namespace
}  // namespace twinrun
