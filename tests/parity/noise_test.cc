// Tests the ensemble behind the parity bounds: op by op, its members stay near the radii of the
// oracle. The distance of our engine from the exact one is within the bound, that of a wrong
// computation is not.
#include <gtest/gtest.h>

#include <cmath>

#include "backends/oracle/oracle.h"
#include "tests/harness/tiny.h"
#include "tests/parity/corners.h"
#include "tests/parity/rounding_noise.h"

namespace twinrun::parity {
namespace {

constexpr int64_t kSteps = 3;

// Capabilities that any engine with f32 arithmetic may declare.
Capabilities foreign() {
  Capabilities c;
  c.name = "any";
  c.ours = false;
  c.elementary_ulps = kForeignElementaryUlps;
  return c;
}

// Judges every op of a member with the oracle.
class Judge : public TraceSink {
 public:
  void on_op(const OpEvent& event) override {
    for (size_t r = 0; r < event.outputs.size(); ++r) {
      std::vector<Tensor> inputs = event.inputs[r];
      if (event.op().kind == OpKind::kAllReduce) {
        inputs.clear();
        for (const auto& in : event.inputs) inputs.push_back(in[0]);
      }
      const OracleVerdict v = replay(foreign(), event.op(), inputs, event.outputs[r], nullptr);
      // A member is off by at most the radius of the oracle, and then by half an ulp from rounding
      // to binary32, which is no more than the radius: the ratio stays below 2. If the radius is 0,
      // the result must be exact, as the ratio is infinite otherwise.
      EXPECT_LT(v.worst, 2) << event.op().name;
      worst = std::max(worst, v.worst);
      ++ops;
    }
  }
  double worst = 0;
  int ops = 0;
};

TEST(RoundingNoise, MembersStayNearTheRadii) {
  const Experiment e = tiny::experiment(tiny::kConvolutional);
  for (const bool sharded : {false, true}) {
    RoundingNoise noise(5, nullptr);
    Judge judge;
    const auto cpu = tiny::backend("cpu");
    tiny::must(
        trace(e, tiny::program(e, sharded), *cpu, {.steps = 2, .hooks = &noise, .sink = &judge}));
    EXPECT_GT(judge.ops, 100);
    EXPECT_GT(judge.worst, 1.9);
  }
}

TEST(RoundingNoise, MembersDifferAndRepeat) {
  const Experiment e = tiny::experiment(tiny::kNormalized);
  const auto cpu = tiny::backend("cpu");
  const auto of = [&](uint32_t member) {
    RoundingNoise noise(member, nullptr);
    return tiny::must(trace(e, e.whole(), *cpu, {.steps = 1, .hooks = &noise}))
        .first.at("dense1/kernel");
  };
  EXPECT_EQ(of(1), of(1));
  EXPECT_NE(of(1), of(2));
}

TEST(RoundingNoise, ReplicasStayEqual) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Program program = e.sharded(e.sharding);
  RoundingNoise noise(1, nullptr);
  const auto cpu = tiny::backend("cpu");
  const auto engine = tiny::must(cpu->prepare(program));
  Feed feed(e.data->train, e.feed_options(32));
  States states = initial_states(program, 3);
  StepOutputs outputs;
  for (int64_t step = 0; step < 2; ++step) {
    const StepInputs inputs =
        tiny::must(step_inputs(program, e.scenario, tiny::must(feed.batch(step)), step));
    tiny::must(engine->step(step, states, inputs, outputs, nullptr, &noise));
  }
  for (size_t i = 0; i < program.state.size(); ++i) {
    for (const ReplicaState& replica : states)
      EXPECT_TRUE(replica.vars[i].same_bits(states[0].vars[i]));
  }
}

TEST(RoundingNoise, DepthOfSums) {
  const Experiment e = tiny::experiment(tiny::kDense);
  const Program sharded = e.sharded(e.sharding);
  const auto depth = [&](const char* name) {
    return summation_depth(sharded, sharded.graph.find(name));
  };
  EXPECT_EQ(depth("dense1/dot_general"), 784);
  EXPECT_EQ(depth("dense1/kernel.grad.all_reduce"), 7);
  EXPECT_EQ(depth("loss/value"), 3);  // a sum of four samples
  EXPECT_EQ(depth("relu1/maximum"), 1);
}

// The largest error among 50 members' sums of 4096 numbers, in units of 2^-24 of the sum.
double error_of_sum(float (*element)(size_t)) {
  Program p;
  const ValueId x = GraphBuilder(p.graph).parameter("x", {DType::kF32, {4096}});
  const ValueId y = GraphBuilder(p.graph).reduce(x, {0}, Reducer::kSum);
  Tensor in = Tensor::empty({DType::kF32, {4096}}), out = Tensor::empty({DType::kF32, {}});
  double exact = 0, worst = 0;
  for (size_t i = 0; i < 4096; ++i) exact += in.as<float>()[i] = element(i);
  for (uint32_t member = 0; member < 50; ++member) {
    RoundingNoise noise(member, nullptr);
    noise.replace({.step = 0, .replica = 0, .program = &p, .id = y}, {in}, out);
    worst = std::max(worst, std::fabs(out.as<float>()[0] - exact) / (exact * 0x1p-24));
  }
  return worst;
}

// In one chain, a sum of equal addends can lose all of gamma_4095; other sums lose about 4095^0.5
// units.
TEST(RoundingNoise, SumsOfEqualsDrift) {
  const double equal = error_of_sum([](size_t) { return 0.1f; });
  const double others =
      error_of_sum([](size_t i) { return 0.1f + 1e-5f * static_cast<float>(i % 97); });
  EXPECT_GT(equal, 0.5 * 4095);
  EXPECT_LE(equal, 1.01 * 4095 + 1);
  EXPECT_GT(others, 0.5 * 64);
  EXPECT_LE(others, 1.01 * 64 + 1);
}

TEST(RoundingNoise, SettingsMoveByLessThanAnUlp) {
  const Scenario s = tiny::scenario(tiny::kNormalized, {{"optimizer.kind", "adam"}});
  const Scenario r = with_rounded_settings(s, 7);
  EXPECT_NE(r.optimizer.beta2, s.optimizer.beta2);
  EXPECT_NEAR(r.optimizer.beta2, s.optimizer.beta2, 0x1p-24);
  EXPECT_NE(r.model.layers[2].momentum, s.model.layers[2].momentum);
  EXPECT_EQ(r.optimizer.lr, s.optimizer.lr);
  EXPECT_EQ(r.model.layers[4].rate, s.model.layers[4].rate);
  EXPECT_EQ(resolved_toml(with_rounded_settings(s, 7)), resolved_toml(r));
}

// The bound is Student's t with 4 or 16 degrees of freedom at 1e-6, two-sided, times sqrt 2. The
// expected quantiles are from scipy 1.17: t.isf(5e-7, 4) and t.isf(5e-7, 16).
TEST(Bound, IsStudentsQuantile) {
  EXPECT_NEAR(bound_of({1, 1, 1, 1}), std::sqrt(2.0) * 49.458637, 1e-4);
  EXPECT_NEAR(bound_of(std::vector<double>(16, 2.0)), 2 * std::sqrt(2.0) * 7.6415113, 1e-5);
}

// How many quantities of `other` lie outside the bound around ours.
int outside(const Trace& ours, const Trace& other, const Spread& spread) {
  int n = 0;
  for (size_t s = 0; s < ours.losses.size(); ++s)
    n += !(std::fabs(mean(ours.losses[s]) - mean(other.losses[s])) <= bound_of(spread.losses[s]));
  const auto count = [&](const Values& a, const Values& b, const Values& members) {
    for (const auto& [name, value] : a)
      n += !(distance(value, b.at(name)) <= bound_of(members.at(name)));
  };
  count(ours.first, other.first, spread.first);
  count(ours.last, other.last, spread.last);
  count(ours.state, other.state, spread.state);
  return n;
}

TEST(Bound, HoldsTheExactRunAndNothingWrong) {
  for (const char* layers : {tiny::kNormalized, tiny::kConvolutional}) {
    const Experiment e = tiny::experiment(layers);
    const Program program = e.whole();
    const auto cpu = tiny::backend("cpu"), f64 = tiny::backend("cpu:f64");
    const Trace ours = tiny::must(trace(e, program, *cpu, {.steps = kSteps}));
    const Trace truth = tiny::must(trace(e, program, *f64, {.steps = kSteps}));
    const Spread spread = tiny::must(ensemble(e, false, truth, kSteps, 8, 1));
    EXPECT_EQ(outside(ours, truth, spread), 0);
    // Gradients that are off by one part in a thousand, and bf16 products, must lie outside.
    const auto broken = tiny::faulty(tiny::backend("cpu"), "scale@*kernel.grad,magnitude=1.001");
    EXPECT_GT(outside(ours, tiny::must(trace(e, program, *broken, {.steps = kSteps})), spread), 0);
    const auto tpu = tiny::backend("tpu");
    EXPECT_GT(outside(ours, tiny::must(trace(e, program, *tpu, {.steps = kSteps})), spread), 0);
  }
}

}  // namespace
}  // namespace twinrun::parity
