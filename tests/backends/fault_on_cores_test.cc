// Tests the exact effect of each kind of fault of state, collectives, randomness and hardware.
// Every such kind must have a row here.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/backends/fault_trials.h"

namespace twinrun::fault_on_cores_test {
namespace {

using small::f32;
using small::Hand;
using small::hooks_of;
using small::i32;
using small::mapped;
using small::numbers;
using small::One;
using small::run;
using small::sum;
using small::Trial;
using small::Values;
using Vec = std::vector<double>;

// ---- state

// A state on both cores before the first and after each of two steps. Element 2 n + r is the state
// of core r after n steps.
std::vector<Tensor> states_of(const Program& p, const std::string& state,
                              const std::vector<std::string>& faults) {
  Trial t("cpu", p);
  const auto hooks = hooks_of(p, faults);
  std::vector<Tensor> out = {t.state(state, 0), t.state(state, 1)};
  for (int64_t s = 0; s < 2; ++s) {
    small::feed(t, s);
    t.step(s, nullptr, hooks.get());
    for (size_t r = 0; r < 2; ++r) out.push_back(t.state(state, r));
  }
  return out;
}
std::string update_of(const Program& p, const std::string& state) {
  return p.graph.op(p.find_state(state)->next).name;
}

void skip_update() {
  const Program p = small::image_net();
  const std::string op = update_of(p, "dense2/kernel");
  const auto s = states_of(p, "dense2/kernel", {"skip_update@" + op + ",core=1,step=1"});
  const auto conforming = states_of(p, "dense2/kernel", {});
  EXPECT_TRUE(s[5].same_bits(s[3]) && s[2].same_bits(conforming[2]) &&
              s[4].same_bits(conforming[4]));
  EXPECT_FALSE(s[5].same_bits(conforming[5]));
  // The last op of a slot's update does not read the slot itself; the slot must keep its value all
  // the same.
  const std::string slot = "dense2/kernel.momentum";
  const auto m = states_of(p, slot, {"skip_update@" + update_of(p, slot) + ",from=1"});
  EXPECT_TRUE(m[4].same_bits(m[2]));
  EXPECT_FALSE(m[4].same_bits(states_of(p, slot, {})[4]));
}
void frozen_statistics() {
  const Program p = small::image_net();
  for (const std::string name : {"bn1/moving_mean", "bn1/moving_variance"}) {
    const auto s = states_of(p, name, {"frozen_statistics@" + update_of(p, name)});
    EXPECT_TRUE(s[4].same_bits(s[0]));
  }
  EXPECT_FALSE(
      FaultHooks::make(p, {small::fault("frozen_statistics@" + update_of(p, "bn1/gamma"))}, 1)
          .ok());
}
void biased_variance() {
  const Program p = small::image_net();
  const auto s = states_of(p, "bn1/moving_variance", {"biased_variance@bn1/*,step=0"});
  const auto conforming = states_of(p, "bn1/moving_variance", {});
  const double n = 8.0 / small::kCores * 9 * 9;  // elements averaged in a statistic
  for (size_t i = 0; i < 5; ++i) {
    // The new moving variance is 0.9 + 0.1 v. Its rounding, 2^-24, counts ten times in v.
    const double moved = s[2].as<float>()[i] - 0.9, right = conforming[2].as<float>()[i] - 0.9;
    EXPECT_NEAR(moved / right, (n - 1) / n, 1e-5);
  }
}
void untied() {
  const Program p = small::image_net();
  const std::string op = update_of(p, "dense2/kernel");
  const auto s = states_of(p, "dense2/kernel", {"untied@" + op + ",step=0"});
  const auto conforming = states_of(p, "dense2/kernel", {});
  EXPECT_TRUE(s[2].same_bits(conforming[2])) << "core 0";
  for (size_t i = 0; i < 36; ++i) {
    const float before = s[1].as<float>()[i];
    EXPECT_EQ(s[3].as<float>()[i], before + 0.5f * (conforming[3].as<float>()[i] - before));
  }
}
void stale_operand() {
  const One op(
      {f32({2}, {1, 2}), f32({2}, {10, 20})},
      [](GraphBuilder& g, const std::vector<ValueId>& v) { return g.sub(v[0], v[1], "y"); });
  const std::vector<Values> steps = {op.in, {{"a", f32({2}, {5, 6})}, {"b", f32({2}, {30, 40})}}};
  EXPECT_EQ(numbers(run(op.p, steps, {"stale_operand@y"})), (Vec{1 - 30, 2 - 40}));
  EXPECT_EQ(numbers(run(op.p, steps, {"stale_operand@y,magnitude=1"})), (Vec{5 - 10, 6 - 20}));
}

// ---- collectives

// y of every core, where y = all_reduce(x) on three cores and core r holds x = steps[step][r].
std::vector<Vec> reduced_over_cores(const std::vector<std::string>& faults,
                                    const std::vector<std::vector<Vec>>& steps) {
  const Program p = [&] {
    Hand h;
    const auto n = static_cast<int64_t>(steps[0][0].size());
    h.p.outputs = {{"y", h.b.all_reduce(h.input("x", {DType::kF32, {n}}), "y")}};
    h.p.sharding.cores = 3;
    return h.p;
  }();
  Trial t("cpu", p);
  const auto hooks = hooks_of(p, faults);
  for (size_t s = 0; s < steps.size(); ++s) {
    for (size_t r = 0; r < 3; ++r) {
      std::vector<float> x(steps[s][r].begin(), steps[s][r].end());
      t.set("x", f32({static_cast<int64_t>(x.size())}, x), r);
    }
    t.step(static_cast<int64_t>(s), nullptr, hooks.get());
  }
  return {numbers(t.output("y", 0)), numbers(t.output("y", 1)), numbers(t.output("y", 2))};
}
using Cores = std::vector<Vec>;
const std::vector<Vec> kParts = {{1, 2, 3}, {10, 20, 30}, {100, 200, 300}};
Cores parts_with(const std::string& fault) { return reduced_over_cores({fault}, {kParts}); }
Cores everywhere(const Vec& v) { return {v, v, v}; }

void double_core() {
  EXPECT_EQ(parts_with("double_core@y"), everywhere({211, 422, 633}));
  EXPECT_EQ(parts_with("double_core@y,core=0"), everywhere({112, 224, 336}));
}
void stale_core() {
  const std::vector<Vec> later = {{2, 2, 2}, {20, 20, 20}, {200, 200, 200}};
  EXPECT_EQ(reduced_over_cores({"stale_core@y"}, {kParts, later}), everywhere({122, 222, 322}));
}
void first_core_only() { EXPECT_EQ(parts_with("first_core_only@y"), everywhere({1, 2, 3})); }
void no_reduce() {
  EXPECT_EQ(parts_with("no_reduce@y"), kParts);
  EXPECT_EQ(parts_with("no_reduce@y,core=1"),
            (Cores{{111, 222, 333}, {10, 20, 30}, {111, 222, 333}}));
}
void one_core_wrong() {
  EXPECT_EQ(parts_with("one_core_wrong@y"),
            (Cores{{111, 222, 333}, {111, 222, 333}, {110, 220, 330}}));
  EXPECT_EQ(parts_with("one_core_wrong@y,core=0"),
            (Cores{{101, 202, 303}, {111, 222, 333}, {111, 222, 333}}));
}
void reduced_twice() { EXPECT_EQ(parts_with("reduced_twice@y"), everywhere({333, 666, 999})); }
void permuted_shards() { EXPECT_EQ(parts_with("permuted_shards@y"), everywhere({222, 333, 111})); }
void wire_bf16() {
  // bf16 has 8 significand bits: the partial sums 513 and 514 lie between 512 and 516 and are
  // rounded to 512. The sum of core c's shard starts at core c + 1.
  const std::vector<Vec> parts = {{512, 512, 512}, {1, 1, 1}, {1, 1, 1}};
  EXPECT_EQ(reduced_over_cores({}, {parts}), everywhere({514, 514, 514}));
  EXPECT_EQ(reduced_over_cores({"wire_bf16@y"}, {parts}), everywhere({512, 512, 512}));
}
TEST(FaultCollective, AnyOtherKindCanStrikeOneCopyOfTheSum) {
  EXPECT_EQ(parts_with("scale@y,core=2,magnitude=2"),
            (Cores{{111, 222, 333}, {111, 222, 333}, {222, 444, 666}}));
}

// ---- random

Tensor drawn(int step, const std::vector<int32_t>& ids, uint64_t seed,
             const std::vector<std::string>& faults) {
  Hand h;
  const ValueId s = h.input("step", {DType::kI32, {}}),
                i = h.input("sample_ids", {DType::kI32, {3}});
  h.p.outputs = {{"y", h.b.rng_uniform(s, i, {3, 4}, seed, 5, "y")}};
  Trial t("cpu", h.p);
  t.set("sample_ids", i32({3}, ids));
  const auto hooks = hooks_of(h.p, faults);
  t.step(step, nullptr, hooks.get());
  return t.output("y");
}
void same_bits_every_step() {
  EXPECT_TRUE(
      drawn(7, {1, 2, 3}, 9, {"same_bits_every_step@y"}).same_bits(drawn(0, {1, 2, 3}, 9, {})));
}
void same_bits_every_sample() {
  EXPECT_TRUE(
      drawn(7, {4, 2, 3}, 9, {"same_bits_every_sample@y"}).same_bits(drawn(7, {4, 4, 4}, 9, {})));
}
void other_seed() {
  EXPECT_TRUE(drawn(7, {1, 2, 3}, 9, {"other_seed@y"}).same_bits(drawn(7, {1, 2, 3}, 10, {})));
}

// ---- hardware

// The index and value of the only element that differs from the correct result in a step.
std::pair<size_t, float> odd_one_out(const std::string& fault, int64_t step) {
  const One op = sum(mapped(Tensor::zeros({DType::kF32, {100}}), [](float) { return 1.0f; }));
  Trial t("cpu", op.p);
  t.set("a", op.in.at("a"));
  const auto hooks = hooks_of(op.p, {fault});
  for (int64_t s = 0; s <= step; ++s) t.step(s, nullptr, hooks.get());
  std::pair<size_t, float> found = {1000, 0};
  int n = 0;
  for (size_t i = 0; i < 100; ++i) {
    if (t.output("y").as<float>()[i] == 2) continue;
    found = {i, t.output("y").as<float>()[i]};
    ++n;
  }
  EXPECT_LE(n, 1);
  return found;
}
void stuck_bit() {
  const auto [at, value] = odd_one_out("stuck_bit@y", 0);
  EXPECT_EQ(value, 3) << "2 with the top bit of the fraction";
  for (int64_t s : {1, 5}) EXPECT_EQ(odd_one_out("stuck_bit@y", s), (std::pair{at, 3.0f}));
  EXPECT_EQ(odd_one_out("stuck_bit@y,magnitude=30", 0).first, 1000u) << "2 has that bit";
}
void nan() {
  EXPECT_TRUE(std::isnan(odd_one_out("nan@y", 0).second));
  EXPECT_EQ(odd_one_out("nan@y", 1).first, 1000u) << "once";
  EXPECT_NE(odd_one_out("nan@y,every=1", 0).first, odd_one_out("nan@y,every=1", 1).first);
}
void inf() { EXPECT_EQ(odd_one_out("inf@y", 0).second, INFINITY); }
void garbage() {
  for (int64_t s = 0; s < 50; ++s)
    EXPECT_TRUE(std::isfinite(odd_one_out("garbage@y,every=1", s).second));
  EXPECT_NE(odd_one_out("garbage@y", 0).first, 1000u);
}

// For kinds whose effect is tested in faults_test.cc.
void in_faults_test() {}

#define ROW(name) \
  { #name, name }
const std::map<std::string_view, void (*)()> kEffects = {ROW(skip_update),
                                                         ROW(stale_operand),
                                                         ROW(untied),
                                                         ROW(frozen_statistics),
                                                         ROW(biased_variance),
                                                         ROW(double_core),
                                                         ROW(stale_core),
                                                         ROW(first_core_only),
                                                         ROW(no_reduce),
                                                         ROW(one_core_wrong),
                                                         ROW(reduced_twice),
                                                         ROW(wire_bf16),
                                                         ROW(permuted_shards),
                                                         ROW(same_bits_every_step),
                                                         ROW(same_bits_every_sample),
                                                         ROW(other_seed),
                                                         ROW(stuck_bit),
                                                         ROW(nan),
                                                         ROW(inf),
                                                         ROW(garbage),
                                                         {"drop_core", in_faults_test},
                                                         {"stale_weights", in_faults_test},
                                                         {"bit_flip", in_faults_test}};
#undef ROW

class FaultOnCores : public testing::TestWithParam<std::string> {};
TEST_P(FaultOnCores, IsExactly) {
  const auto it = kEffects.find(GetParam());
  ASSERT_NE(it, kEffects.end())
      << "fault " << GetParam()
      << ": no effect in kEffects of tests/backends/fault_on_cores_test.cc";
  it->second();
}
INSTANTIATE_TEST_SUITE_P(
    All, FaultOnCores,
    testing::ValuesIn(small::kinds_of({FaultGroup::kState, FaultGroup::kCollectives,
                                       FaultGroup::kRandom, FaultGroup::kHardware})),
    [](const auto& p) { return p.param; });

}  // namespace
}  // namespace twinrun::fault_on_cores_test
