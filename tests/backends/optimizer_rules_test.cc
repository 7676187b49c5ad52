// Tests several steps of every optimizer on small networks against plain code that carries its
// rounding bound (optimizers_by_hand.h): cpu:f64 within the rounding of binary64, cpu within that
// of binary32. Also tests the sizes of slots.
#include <gtest/gtest.h>

#include "program/graph/optimizer.h"
#include "tests/backends/optimizers_by_hand.h"

namespace twinrun::optimizer_rules_test {
namespace {

using small::numbers;
using small::Trial;
using Kind = OptimizerSpec::Kind;
using Algebra = OptimizerSpec::Algebra;

constexpr int kSteps = 5;
constexpr int64_t kBatch = 8;

struct Case {
  std::string name;
  OptimizerSpec spec;
};

std::vector<Case> cases() {
  return {
      {"sgd", {.kind = Kind::kSgd}},
      {"momentum", {.kind = Kind::kMomentum}},
      {"nesterov", {.kind = Kind::kMomentum, .nesterov = true}},
      {"adam", {.kind = Kind::kAdam}},
      {"adagrad", {.kind = Kind::kAdagrad, .epsilon = 1e-7}},
      {"adadelta", {.kind = Kind::kAdadelta, .rho = 0.95}},
      {"rmsprop", {.kind = Kind::kRmsprop, .momentum = 0, .epsilon = 1e-10}},
      {"rmsprop_momentum", {.kind = Kind::kRmsprop, .momentum = 0.9, .epsilon = 1e-3}},
      {"rmsprop_centered",
       {.kind = Kind::kRmsprop, .momentum = 0.5, .epsilon = 1e-3, .centered = true}},
      {"rmsprop_xla",
       {.kind = Kind::kRmsprop, .momentum = 0.9, .epsilon = 1e-3, .algebra = Algebra::kXla}},
      {"rmsprop_centered_xla",
       {.kind = Kind::kRmsprop, .epsilon = 1e-3, .centered = true, .algebra = Algebra::kXla}},
      {"adamax", {.kind = Kind::kAdamax}},
      {"adamax_xla", {.kind = Kind::kAdamax, .algebra = Algebra::kXla}},
      {"adamw", {.kind = Kind::kAdamw, .epsilon = 1e-7, .weight_decay = 0.1}},
      {"adafactor", {.kind = Kind::kAdafactor, .beta1 = 0}},
      {"adafactor_m", {.kind = Kind::kAdafactor, .beta1 = 0.9, .clipping_threshold = 0.25}},
      {"adafactor_relative", {.kind = Kind::kAdafactor, .beta1 = 0, .relative_step = true}},
      {"adafactor_unscaled",
       {.kind = Kind::kAdafactor, .beta1 = 0, .relative_step = true, .parameter_scale = false}},
      {"lars", {.kind = Kind::kLars, .epsilon = 0, .weight_decay = 0.01}},
      {"lars_nesterov",
       {.kind = Kind::kLars, .nesterov = true, .epsilon = 1e-6, .weight_decay = 0.01}},
      {"lamb", {.kind = Kind::kLamb, .epsilon = 1e-6, .weight_decay = 0.01}},
      {"adam_ema", {.kind = Kind::kAdam, .ema = 0.9}},
  };
}

// A network with parameters of rank 4, 2 and 1.
Program network(const OptimizerSpec& spec) {
  return training_step(
      build_forward(Mode::kTraining, kBatch, {{6, 6, 2}}, 7, spec, [](Layers& net) {
        net.conv2d("conv1", {.filters = 3, .kernel = 3, .stride = 2});
        net.relu("relu1");
        net.flatten("flatten1");
        net.dense("dense1", 5);
        net.softmax_cross_entropy(5, {Reducer::kMean});
      }));
}

void feed(Trial& t, int step) {
  std::vector<int32_t> labels, ids;
  for (int32_t i = 0; i < kBatch; ++i) {
    labels.push_back((i * 3 + step) % 5);
    ids.push_back(i);
  }
  t.set("images", small::generic_f32({kBatch, 6, 6, 2}, -1, 1, static_cast<uint32_t>(step)));
  t.set("labels", small::i32({kBatch}, labels));
  t.set("sample_ids", small::i32({kBatch}, ids));
}

// The plain code uses the gradients of the engine, so that their rounding does not count as an
// error of the optimizer.
template <int Bits>
void expect_rule(const std::string& engine, const OptimizerSpec& spec) {
  constexpr float kRate = 0.05f;
  const Program p = network(spec);
  Trial run(engine, p);
  run.set("learning_rate", Tensor::scalar(kRate));
  ByHand<Bits> hand(spec, p, initial_state(p, 1));
  for (int step = 0; step < kSteps; ++step) {
    feed(run, step);
    run.step(step);
    std::map<std::string, std::vector<double>> gradients;
    for (const StateVar& var : p.state) {
      if (var.role == StateRole::kParameter)
        gradients[var.name] = numbers(run.output(var.name + ".grad"));
    }
    ASSERT_EQ(gradients.size(), 4u);
    hand.step(gradients, kRate);
    for (const StateVar& var : p.state) {
      const std::vector<double> found = numbers(run.state(var.name));
      const auto& expected = hand.state.at(var.name);
      ASSERT_EQ(found.size(), expected.size());
      for (size_t i = 0; i < found.size(); ++i) {
        // The plain code itself rounds to binary64.
        const double bound = expected[i].error * (Bits == 24 ? 1 + 0x1p-20 : 2);
        ASSERT_NEAR(found[i], expected[i].value, bound)
            << var.name << " " << i << " after step " << step;
        // The bound must be small enough to be useful: at most a thousandth of a step.
        ASSERT_LT(bound, 1e-3 * kRate * (Bits == 24 ? 1 : 0x1p-24)) << var.name << " " << i;
      }
    }
  }
}

class OptimizerRules : public testing::TestWithParam<Case> {};
TEST_P(OptimizerRules, Binary64) { expect_rule<53>("cpu:f64", GetParam().spec); }
TEST_P(OptimizerRules, Binary32) { expect_rule<24>("cpu", GetParam().spec); }

// The bytes of slots per weight, as in the table of docs/reference/formulas.md.
TEST_P(OptimizerRules, SlotBytes) {
  for (const int64_t accumulate : {1, 4}) {
    OptimizerSpec spec = GetParam().spec;
    spec.accumulate = accumulate;
    const Program p = network(spec);
    for (const StateVar& parameter : p.state) {
      if (parameter.role != StateRole::kParameter) continue;
      int64_t bytes = 0;
      for (const StateVar& var : p.state) {
        if (var.role == StateRole::kSlot && var.name.starts_with(parameter.name + "."))
          bytes += static_cast<int64_t>(var.type.bytes());
      }
      EXPECT_EQ(slot_bytes(spec, parameter.type), bytes) << parameter.name << " x " << accumulate;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, OptimizerRules, testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST(OptimizerSlots, StartAsTensorFlowHasThem) {
  const auto first = [](const OptimizerSpec& spec, const std::string& name) {
    const Program p = network(spec);
    return numbers(initial_state(p, 1)[static_cast<size_t>(p.state_index(name))])[0];
  };
  EXPECT_EQ(first({.kind = Kind::kRmsprop}, "dense1/kernel.rms"), 1);
  EXPECT_EQ(first({.kind = Kind::kAdagrad}, "dense1/kernel.accumulator"), 0.1f);
  EXPECT_EQ(first({.kind = Kind::kAdam}, "dense1/kernel.adam_v"), 0);
  EXPECT_EQ(first({.kind = Kind::kAdamax}, "adamax/beta1_power"), 0.9f);
  const OptimizerSpec averaged{.kind = Kind::kSgd, .ema = 0.5};
  EXPECT_EQ(first(averaged, "dense1/kernel.ema"), first(averaged, "dense1/kernel"));
  EXPECT_NE(first(averaged, "dense1/kernel"), 0);
}

// With constants that binary32 holds exactly, both algebras are the same function.
TEST(OptimizerAlgebra, BothMeanTheSame) {
  for (OptimizerSpec spec : {OptimizerSpec{.kind = Kind::kRmsprop, .momentum = 0.5, .rho = 0.5},
                             OptimizerSpec{.kind = Kind::kRmsprop, .rho = 0.5, .centered = true},
                             OptimizerSpec{.kind = Kind::kAdamax, .beta1 = 0.5}}) {
    ASSERT_TRUE(has_two_algebras(spec));
    spec.epsilon = 0.125;
    std::map<std::string, std::vector<double>> gradients;
    const Program cpu = network(spec);
    spec.algebra = Algebra::kXla;
    const Program xla = network(spec);
    EXPECT_NE(digest(cpu), digest(xla));
    for (const StateVar& var : cpu.state) {
      if (var.role == StateRole::kParameter)
        gradients[var.name] = small::generic(var.type.elements(), -1, 1, 5);
    }
    spec.algebra = Algebra::kCpu;
    ByHand<53> a(spec, cpu, initial_state(cpu, 1));
    spec.algebra = Algebra::kXla;
    ByHand<53> b(spec, xla, initial_state(xla, 1));
    for (int step = 0; step < kSteps; ++step) {
      a.step(gradients, 0.05f);
      b.step(gradients, 0.05f);
    }
    ASSERT_EQ(a.state.size(), b.state.size());
    for (const auto& [name, values] : a.state) {
      for (size_t i = 0; i < values.size(); ++i) {
        const auto& other = b.state.at(name)[i];
        ASSERT_NEAR(values[i].value, other.value, values[i].error + other.error)
            << name << " " << i;
      }
    }
  }
  for (Kind kind : {Kind::kSgd, Kind::kMomentum, Kind::kAdam, Kind::kLamb, Kind::kAdafactor}) {
    OptimizerSpec spec{.kind = kind};
    EXPECT_FALSE(has_two_algebras(spec));
    const Digest one = digest(network(spec));
    spec.algebra = Algebra::kXla;
    EXPECT_EQ(digest(network(spec)), one);
  }
}

}  // namespace
}  // namespace twinrun::optimizer_rules_test
