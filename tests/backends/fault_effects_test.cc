// Tests the exact effect of each kind of fault of arithmetic and indexing, on ops small enough to
// work it out by hand. Every such kind must have a row here.
#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <map>

#include "backends/registry.h"
#include "program/base/bits.h"
#include "tests/backends/fault_trials.h"

namespace twinrun::fault_effects_test {
namespace {

using small::f32;
using small::generic_f32;
using small::Hand;
using small::hooks_of;
using small::i32;
using small::numbers;
using small::Trial;
using Vec = std::vector<double>;
using small::mapped;
using small::One;
using small::run;
using small::sum;
using small::Values;

One binary(OpKind kind, const Tensor& a, const Tensor& b) {
  return One({a, b}, [=](GraphBuilder& g, const std::vector<ValueId>& v) {
    return g.binary(kind, v[0], v[1], "y");
  });
}
One unary(OpKind kind, const Tensor& a) {
  return One({a}, [=](GraphBuilder& g, const std::vector<ValueId>& v) {
    return g.unary(kind, v[0], "y");
  });
}
One dot(const Tensor& a, const Tensor& b) {
  return One({a, b}, [](GraphBuilder& g, const std::vector<ValueId>& v) {
    return g.dot(v[0], v[1], 1, 0, "y");
  });
}
One reduced(const Tensor& a, Dims dims, Reducer reducer) {
  return One({a}, [=](GraphBuilder& g, const std::vector<ValueId>& v) {
    return g.reduce(v[0], dims, reducer, "y");
  });
}
const Window kOverlap{{2, 2}, {1, 1}, {0, 0}, {0, 0}};

float up(float x) { return std::nextafter(x, INFINITY); }
float near_bf16(float x) { return bf16_to_f32(bf16_round(x)); }
float cut_to_12_bits(float x) { return from_bits(to_bits(x) & ~((1u << 11) - 1)); }
Tensor some(Dims dims, uint32_t stream = 1) { return generic_f32(std::move(dims), 0.5, 2, stream); }
// The value of f() with rounding toward zero.
template <typename F>
float toward_zero(F f) {
  std::fesetround(FE_TOWARDZERO);
  volatile float r = f();
  std::fesetround(FE_TONEAREST);
  return r;
}

// ---- arithmetic

void one_pass() {
  const One op = dot(some({3, 40}), some({40, 2}, 2));
  EXPECT_TRUE(op.with("one_pass@y")
                  .same_bits(run(op.p,
                                 {{{"a", mapped(op.in.at("a"), near_bf16)},
                                   {"b", mapped(op.in.at("b"), near_bf16)}}},
                                 {})));
  // Where one pass is declared, the fault changes nothing.
  const Tensor one = run(op.p, {op.in}, {}, "tpu");
  EXPECT_TRUE(run(op.p, {op.in}, {"one_pass@y"}, "tpu").same_bits(one));
}

void bf16_accumulator() {
  // bf16 has 8 significand bits: 256 + 1 is rounded to 256.
  const Tensor ones = mapped(Tensor::zeros({DType::kF32, {1, 1000}}), [](float) { return 1.0f; });
  EXPECT_EQ(numbers(dot(ones, ones.reshaped({1000, 1})).with("bf16_accumulator@y")), Vec{256});
  EXPECT_EQ(numbers(reduced(ones, {1}, Reducer::kSum).with("bf16_accumulator@y")), Vec{256});
  EXPECT_FLOAT_EQ(reduced(ones, {1}, Reducer::kMean).with("bf16_accumulator@y").as<float>()[0],
                  0.256f);
}

void truncate_accumulator() {
  const Tensor x = some({1, 50});
  float expected = 0;
  for (float v : x.as<float>()) expected = toward_zero([&] { return expected + v; });
  const One op = reduced(x, {1}, Reducer::kSum);
  EXPECT_EQ(op.with("truncate_accumulator@y").as<float>()[0], expected);
  EXPECT_LT(expected, op.conforming().as<float>()[0]);
  // The operands of a dot are rounded as the engine declares, here to bf16, so that all products
  // are exact.
  const One product = dot(x, some({50, 1}, 2));
  expected = 0;
  for (size_t i = 0; i < 50; ++i) {
    const float term = near_bf16(x.as<float>()[i]) * near_bf16(product.in.at("b").as<float>()[i]);
    expected = toward_zero([&] { return expected + term; });
  }
  const FaultHooks::Where tpu{.declared = (*make_backend("tpu", {}))->capabilities()};
  EXPECT_EQ(numbers(run(product.p, {product.in}, {"truncate_accumulator@y"}, "tpu", tpu)),
            Vec{expected});
}

void round_toward_zero() {
  for (const OpKind kind : {OpKind::kAdd, OpKind::kSubtract, OpKind::kMultiply, OpKind::kDivide}) {
    const Tensor a = generic_f32({40}, -2, 2, 1), b = some({40}, 2);
    const Tensor y = binary(kind, a, b).with("round_toward_zero@y");
    for (size_t i = 0; i < 40; ++i) {
      const volatile float p = a.as<float>()[i], q = b.as<float>()[i];
      EXPECT_EQ(y.as<float>()[i], toward_zero([&] {
                  return kind == OpKind::kAdd        ? p + q
                         : kind == OpKind::kSubtract ? p - q
                         : kind == OpKind::kMultiply ? p * q
                                                     : p / q;
                }));
    }
  }
}

void ulp_bias() {
  const Tensor x = generic_f32({1000}, -2, 2, 1);
  const One op = sum(x);
  EXPECT_TRUE(op.with("ulp_bias@y").same_bits(mapped(op.conforming(), up)));
  EXPECT_TRUE(op.with("ulp_bias@y,magnitude=2").same_bits(mapped(op.conforming(), [](float v) {
    return up(up(v));
  })));
  // A quarter of 1000 is 250 with a standard deviation of 14; allow five of them either way.
  const Tensor part = op.with("ulp_bias@y,magnitude=0.25"), conforming = op.conforming();
  int moved = 0;
  for (size_t i = 0; i < 1000; ++i) {
    const float v = part.as<float>()[i], h = conforming.as<float>()[i];
    EXPECT_TRUE(v == h || v == up(h));
    moved += v != h ? 1 : 0;
  }
  EXPECT_NEAR(moved, 250, 70);
  EXPECT_EQ(numbers(sum(f32({1}, {0})).with("ulp_bias@y")), Vec{0}) << "a zero is exact";
}
void ulp_toward_zero() {
  const One op = sum(generic_f32({100}, -2, 2, 1));
  EXPECT_TRUE(op.with("ulp_toward_zero@y").same_bits(mapped(op.conforming(), [](float v) {
    return std::nextafter(v, 0.0f);
  })));
}

void elementary_ulps() {
  const One op = unary(OpKind::kExponential, some({100}));
  const Tensor y = op.with("elementary_ulps@y"), conforming = op.conforming();
  int above = 0;
  // 4 ulps beyond the 0.5 that cpu declares, rounded up to whole ulps, is 5.
  for (size_t i = 0; i < 100; ++i) {
    EXPECT_EQ(ulp_distance(y.as<float>()[i], conforming.as<float>()[i]), 5);
    above += y.as<float>()[i] > conforming.as<float>()[i] ? 1 : 0;
  }
  EXPECT_GT(above, 20);
  EXPECT_LT(above, 80);
}
void table_lookup() {
  for (const OpKind kind : {OpKind::kExponential, OpKind::kTanh, OpKind::kErf}) {
    const One op = unary(kind, some({40}));
    EXPECT_TRUE(
        op.with("table_lookup@y").same_bits(op.on("a", mapped(op.in.at("a"), cut_to_12_bits))));
  }
}
void approximate_division() {
  const One op = binary(OpKind::kDivide, some({40}), some({40}, 2));
  EXPECT_TRUE(op.with("approximate_division@y")
                  .same_bits(op.on("b", mapped(op.in.at("b"), cut_to_12_bits))));
  const One root = unary(OpKind::kRsqrt, some({40}));
  EXPECT_TRUE(root.with("approximate_division@y")
                  .same_bits(root.on("a", mapped(root.in.at("a"), cut_to_12_bits))));
  EXPECT_TRUE(root.with("approximate_division@y,magnitude=23").same_bits(root.conforming()));
}

// Values derived from constants are computed once and kept. A fault in one step must reach them,
// and must not remain in them in later steps.
void wrong_constant() {
  Hand h;
  const ValueId c = h.b.constant(2, DType::kF32, "two");
  const ValueId x = h.input("a", {DType::kF32, {3}});
  h.p.outputs = {{"y", h.b.add(x, h.b.broadcast_scalar(c, x, "twos"), "y")}};
  Trial t("cpu", h.p);
  t.set("a", f32({3}, {0, 1, 2}));
  const auto hooks = hooks_of(h.p, {"wrong_constant@two,magnitude=0.5,step=1"});
  const auto first = hooks_of(h.p, {"wrong_constant@two,magnitude=0.5,step=0"});
  for (int s = 0; s < 3; ++s) {
    t.step(s, nullptr, hooks.get());
    EXPECT_EQ(numbers(t.output("y")), s == 1 ? (Vec{3, 4, 5}) : (Vec{2, 3, 4})) << s;
  }
  Trial again("cpu", h.p);
  again.set("a", f32({3}, {0, 1, 2}));
  for (int s = 0; s < 3; ++s) {
    again.step(s, nullptr, first.get());
    EXPECT_EQ(numbers(again.output("y")), s == 0 ? (Vec{3, 4, 5}) : (Vec{2, 3, 4})) << s;
  }
}

void padded_mean() {
  const auto mean_of = [](int64_t n, const std::string& fault) {
    const Tensor x = mapped(Tensor::zeros({DType::kF32, {n}}), [](float) { return 1.0f; });
    return numbers(reduced(x, {0}, Reducer::kMean).with(fault));
  };
  EXPECT_EQ(mean_of(6, "padded_mean@y"), Vec{0.75});
  EXPECT_EQ(mean_of(64, "padded_mean@y"), Vec{0.5});
  EXPECT_EQ(mean_of(128, "padded_mean@y"), Vec{1}) << "nothing to pad";
  EXPECT_EQ(mean_of(3, "padded_mean@y,magnitude=4"), Vec{0.75});
  // 2 x 2 windows of a 2 x 2 image with one row and column of padding below: 4, 2, 2 and 1 taps.
  const One pool(
      {f32({1, 2, 2, 1}, {4, 4, 4, 4})}, [](GraphBuilder& g, const std::vector<ValueId>& v) {
        return g.reduce_window(v[0], {{2, 2}, {1, 1}, {0, 0}, {1, 1}}, Reducer::kMean, "y");
      });
  EXPECT_EQ(numbers(pool.conforming()), (Vec{4, 4, 4, 4}));
  EXPECT_EQ(numbers(pool.with("padded_mean@y")), (Vec{4, 2, 2, 1}));
}

void unstable_softmax() {
  const One op({some({2, 3})}, [](GraphBuilder& g, const std::vector<ValueId>& v) {
    const ValueId most = g.reduce(v[0], {1}, Reducer::kMax, "max");
    g.reduce(v[0], {1}, Reducer::kMax, "other_max");
    return g.sub(v[0], g.broadcast(most, {2, 3}, {0}, "spread"), "y");
  });
  EXPECT_TRUE(op.with("unstable_softmax@max").same_bits(op.in.at("a")));
  EXPECT_FALSE(FaultHooks::make(op.p, {small::fault("unstable_softmax@other_max")}, 1).ok());
}

void denormals() {
  const Tensor a = f32({2}, {1e-30f, 3}), b = f32({2}, {1e-10f, 4});
  const One op = binary(OpKind::kMultiply, a, b);
  EXPECT_NE(numbers(op.conforming())[0], 0);
  EXPECT_EQ(numbers(op.with("denormals@y")), (Vec{0, 12})) << "cpu keeps them";
  const FaultHooks::Where tpu{.declared = (*make_backend("tpu", {}))->capabilities()};
  EXPECT_EQ(numbers(run(op.p, {op.in}, {}, "tpu")), (Vec{0, 12}));
  EXPECT_TRUE(run(op.p, {op.in}, {"denormals@y"}, "tpu", tpu).same_bits(op.conforming()));
}

// ---- indexing

void padding_leak() {
  // 126 terms fill a tile of 128 but for two: the first two terms count twice.
  const One op = dot(some({2, 126}), some({126, 3}, 2));
  const One first = dot(some({2, 2}), some({2, 3}));
  const auto a = op.in.at("a").as<float>();
  Values v = {{"a", f32({2, 2}, {a[0], a[1], a[126], a[127]})}, {"b", op.in.at("b").rows(0, 2)}};
  const Tensor extra = run(first.p, {v}, {}), conforming = op.conforming(),
               y = op.with("padding_leak@y");
  for (size_t i = 0; i < 6; ++i)
    EXPECT_EQ(y.as<float>()[i], conforming.as<float>()[i] + extra.as<float>()[i]);
  const One whole = dot(some({2, 128}), some({128, 3}, 2));
  EXPECT_TRUE(whole.with("padding_leak@y").same_bits(whole.conforming())) << "no padding";
}
void padding_nan() {
  for (double v : numbers(dot(some({2, 126}), some({126, 3})).with("padding_nan@y")))
    EXPECT_TRUE(std::isnan(v));
  const One whole = dot(some({2, 128}), some({128, 3}, 2));
  EXPECT_TRUE(whole.with("padding_nan@y").same_bits(whole.conforming()));
}
void transposed() {
  const One op = dot(f32({2, 2}, {1, 2, 3, 4}), some({2, 3}));
  EXPECT_TRUE(op.with("transposed@y").same_bits(op.on("a", f32({2, 2}, {1, 3, 2, 4}))));
  const One second = dot(some({3, 2}), f32({2, 2}, {1, 2, 3, 4}));
  EXPECT_TRUE(second.with("transposed@y").same_bits(second.on("b", f32({2, 2}, {1, 3, 2, 4}))));
}
void wrong_stride() {
  const One op = dot(f32({2, 3}, {1, 2, 3, 4, 5, 6}), some({3, 2}));
  EXPECT_TRUE(op.with("wrong_stride@y").same_bits(op.on("a", f32({2, 3}, {1, 3, 5, 2, 4, 6}))));
}
void border() {
  const One pool(
      {mapped(Tensor::zeros({DType::kF32, {1, 3, 3, 1}}), [](float) { return 1.0f; })},
      [](GraphBuilder& g, const std::vector<ValueId>& v) {
        return g.reduce_window(v[0], {{1, 1}, {1, 1}, {0, 0}, {0, 0}}, Reducer::kMean, "y");
      });
  EXPECT_EQ(numbers(pool.with("border@y")), (Vec{0, 0, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(numbers(pool.with("border@y,magnitude=2")), (Vec{2, 2, 2, 2, 1, 2, 2, 2, 2}));
}
void edge_tile() {
  const One op = sum(some({10, 130}));
  const Tensor y = op.with("edge_tile@y"), conforming = op.conforming();
  for (size_t i = 0; i < 1300; ++i) {
    const bool unwritten = i / 130 >= 8 && i % 130 >= 128;
    EXPECT_EQ(y.as<float>()[i], unwritten ? 0 : conforming.as<float>()[i]);
  }
  const One whole = sum(some({8, 128}));
  EXPECT_TRUE(whole.with("edge_tile@y").same_bits(whole.conforming()));
}
void lane() {
  const One op = sum(f32({6}, {0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers(op.with("lane@y,magnitude=3")), (Vec{0, 2, 2, 6, 8, 8}));
  EXPECT_TRUE(op.with("lane@y").same_bits(op.conforming())) << "fewer than 128 elements";
}
One scatter() {
  return One({i32({3}, {0, 2, 0}), f32({3, 2}, {1, 2, 4, 8, 16, 32})},
             [](GraphBuilder& g, const std::vector<ValueId>& v) {
               return g.scatter_add(v[0], v[1], {3, 2}, "y");
             });
}
void assign_not_add() {
  EXPECT_EQ(numbers(scatter().conforming()), (Vec{17, 34, 0, 0, 4, 8}));
  EXPECT_EQ(numbers(scatter().with("assign_not_add@y")), (Vec{16, 32, 0, 0, 4, 8}));
  const One avg({f32({1, 1, 2, 1}, {4, 8})}, [](GraphBuilder& g, const std::vector<ValueId>& v) {
    return g.avg_pool_grad(v[0], {1, 2, 3, 1}, kOverlap, "y");
  });
  EXPECT_EQ(numbers(avg.conforming()), (Vec{1, 3, 2, 1, 3, 2}));
  EXPECT_EQ(numbers(avg.with("assign_not_add@y")), (Vec{1, 2, 2, 1, 2, 2}));
}
void wrong_tie() {
  const One op({f32({1, 2, 3, 1}, {5, 5, 1, 0, 5, 7}), f32({1, 1, 2, 1}, {1, 2})},
               [](GraphBuilder& g, const std::vector<ValueId>& v) {
                 return g.select_and_scatter(v[0], v[1], kOverlap, "y");
               });
  EXPECT_EQ(numbers(op.conforming()), (Vec{1, 0, 0, 0, 0, 2}));
  EXPECT_EQ(numbers(op.with("wrong_tie@y")), (Vec{0, 0, 0, 0, 1, 2}));
}
void zero_rows() {
  const One op = sum(some({20, 3}));
  const auto zeros = [&](const std::string& magnitude) {
    const Tensor y = op.with("zero_rows@y" + magnitude), conforming = op.conforming();
    int n = 0;
    for (size_t r = 0; r < 20; ++r) {
      const bool zero = y.as<float>()[3 * r] == 0;
      n += zero ? 1 : 0;
      for (size_t c = 3 * r; c < 3 * r + 3; ++c)
        EXPECT_EQ(y.as<float>()[c], zero ? 0 : conforming.as<float>()[c]);
    }
    return n;
  };
  EXPECT_EQ(zeros(",magnitude=0"), 1);
  EXPECT_EQ(zeros(",magnitude=1"), 20);
  EXPECT_GT(zeros(",magnitude=0.5"), 2);
}
void lost_term() {
  const Tensor a = some({4}), b = some({4}, 2);
  EXPECT_TRUE(binary(OpKind::kAdd, a, b).with("lost_term@y").same_bits(a));
  EXPECT_TRUE(binary(OpKind::kSubtract, a, b).with("lost_term@y").same_bits(a));
  EXPECT_EQ(
      numbers(reduced(f32({2, 3}, {1, 2, 4, 8, 16, 32}), {1}, Reducer::kSum).with("lost_term@y")),
      (Vec{6, 48}));
  EXPECT_EQ(numbers(scatter().with("lost_term@y")), (Vec{16, 32, 0, 0, 0, 0}));
}
void shifted_rows() {
  const One op = sum(f32({3, 2}, {0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(numbers(op.with("shifted_rows@y")), (Vec{8, 10, 0, 2, 4, 6}));
  EXPECT_EQ(numbers(op.with("shifted_rows@y,magnitude=3")), numbers(op.conforming()));
}
void swapped_samples() {
  const One op = sum(f32({5}, {0, 1, 2, 3, 4}));
  Vec y = numbers(op.with("swapped_samples@y"));
  int moved = 0;
  for (size_t i = 0; i < 5; ++i) moved += y[i] != 2.0 * static_cast<double>(i) ? 1 : 0;
  EXPECT_EQ(moved, 2);
  std::ranges::sort(y);
  EXPECT_EQ(y, (Vec{0, 2, 4, 6, 8}));
}

// For kinds whose effect is tested in faults_test.cc.
void in_faults_test() {}

#define ROW(name) \
  { #name, name }
const std::map<std::string_view, void (*)()> kEffects = {ROW(one_pass),
                                                         ROW(bf16_accumulator),
                                                         ROW(truncate_accumulator),
                                                         ROW(round_toward_zero),
                                                         ROW(ulp_bias),
                                                         ROW(ulp_toward_zero),
                                                         ROW(elementary_ulps),
                                                         ROW(table_lookup),
                                                         ROW(approximate_division),
                                                         ROW(wrong_constant),
                                                         ROW(padded_mean),
                                                         ROW(unstable_softmax),
                                                         ROW(denormals),
                                                         ROW(padding_leak),
                                                         ROW(padding_nan),
                                                         ROW(transposed),
                                                         ROW(wrong_stride),
                                                         ROW(border),
                                                         ROW(edge_tile),
                                                         ROW(lane),
                                                         ROW(assign_not_add),
                                                         ROW(wrong_tie),
                                                         ROW(zero_rows),
                                                         ROW(lost_term),
                                                         ROW(shifted_rows),
                                                         ROW(swapped_samples),
                                                         {"scale", in_faults_test},
                                                         {"truncate_bf16", in_faults_test},
                                                         {"drop_k_tail", in_faults_test}};
#undef ROW

class FaultEffect : public testing::TestWithParam<std::string> {};
TEST_P(FaultEffect, IsExactly) {
  const auto it = kEffects.find(GetParam());
  ASSERT_NE(it, kEffects.end())
      << "fault " << GetParam()
      << ": no effect in kEffects of tests/backends/fault_effects_test.cc";
  it->second();
}
INSTANTIATE_TEST_SUITE_P(All, FaultEffect,
                         testing::ValuesIn(small::kinds_of({FaultGroup::kArithmetic,
                                                            FaultGroup::kIndexing})),
                         [](const auto& p) { return p.param; });

// ---- several faults on one op

TEST(FaultOrder, ComputationFirstThenResultsAsGiven) {
  const One op = binary(OpKind::kAdd, f32({1}, {1}), f32({1}, {2}));
  EXPECT_EQ(numbers(run(op.p, {op.in}, {"scale@y,magnitude=10", "lost_term@y"})), Vec{10});
  EXPECT_EQ(numbers(run(op.p, {op.in}, {"scale@y,magnitude=10", "ulp_toward_zero@y"})),
            Vec{std::nextafter(30.0f, 0.0f)});
}

}  // namespace
}  // namespace twinrun::fault_effects_test
