// Tests the planned host memory of our engines against what their tensors really take, counted
// where they are allocated.
#include "program/analysis/host_memory.h"

#include <gtest/gtest.h>

#include "backends/registry.h"
#include "program/base/tensor_memory.h"
#include "tests/harness/tiny.h"

namespace twinrun {
namespace {

struct Case {
  const char* scenario;
  const char* engine;
  int cores;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.scenario << " " << c.engine << " x" << c.cores;
}

class HostPlans : public ::testing::TestWithParam<Case> {};

TEST_P(HostPlans, PlanIsWithinFivePercentOfWhatIsHeld) {
  const Case& c = GetParam();
  const Experiment e = tiny::must(make_experiment(tiny::must(load_scenario(c.scenario))));
  Sharding sharding = e.sharding;
  sharding.cores = c.cores;
  const Program program = c.cores == 1 ? e.whole() : e.sharded(sharding);
  const HostPlan plan = plan_host(program);
  const StepInputs inputs = tiny::must(StepFeed(e, program).inputs(0));
  const int64_t before = tensor_memory().live;
  auto backend = tiny::must(make_backend(c.engine, {.threads = 2}));
  auto engine = tiny::must(backend->prepare(program));
  States states = initial_states(program, 1);
  StepOutputs outputs;
  reset_tensor_peak();
  for (int step = 0; step < 3; ++step)
    ASSERT_TRUE(engine->step(step, states, inputs, outputs, nullptr, nullptr).ok());
  // The batch was allocated before, so only the memory of the engine itself is compared.
  const auto held = static_cast<double>(tensor_memory().peak - before);
  EXPECT_NEAR(static_cast<double>(plan.total() - plan.inputs) / held, 1.0, 0.05)
      << "planned " << plan.total() << " (arena " << plan.arena << ", states " << plan.states
      << ", outputs " << plan.outputs << ", inputs " << plan.inputs << ", constants "
      << plan.constants << "), held " << held;
}

INSTANTIATE_TEST_SUITE_P(
    Library, HostPlans,
    ::testing::Values(Case{"digits_mlp", "cpu", 1}, Case{"digits_mlp", "tpu", 8},
                      Case{"digits_cnn", "cpu", 1}, Case{"digits_cnn", "tpu", 8},
                      Case{"mlp_bn", "cpu", 1}, Case{"mlp_bn", "tpu", 8},
                      Case{"drill_attention", "cpu", 1}, Case{"drill_attention", "tpu", 8},
                      Case{"drill_cnn", "tpu", 4}, Case{"digits_mlp", "tpu", 64},
                      Case{"digits_cnn", "tpu", 64}, Case{"mlp_bn", "tpu", 32}),
    [](const auto& info) {
      return std::string(info.param.scenario) + "_" + info.param.engine + "_" +
             std::to_string(info.param.cores);
    });

TEST(TensorMemory, CountsBlocksOnceAndForgetsThem) {
  const int64_t before = tensor_memory().live;
  reset_tensor_peak();
  {
    const Tensor a = Tensor::empty({DType::kF32, {16}});
    const Tensor rows = a.rows(2, 4);
    EXPECT_EQ(tensor_memory().live, before + 64);
  }
  EXPECT_EQ(tensor_memory().live, before);
  EXPECT_EQ(tensor_memory().peak, before + 64);
}

}  // namespace
}  // namespace twinrun
