// Tests elementwise ops, conversions, moves and random numbers against one-line definitions.
#include <gtest/gtest.h>

#include <functional>

#include "program/base/philox.h"
#include "tests/backends/kernels_naive.h"

namespace twinrun::kernels_elementwise_test {
namespace {

using namespace naive;

// Pairs of operands: every combination of special values, then random ones.
std::pair<Tensor, Tensor> operands() {
  const float inf = std::numeric_limits<float>::infinity(), max = std::numeric_limits<float>::max();
  const float special[] = {0.0f,
                           -0.0f,
                           1.0f,
                           -1.0f,
                           inf,
                           -inf,
                           from_bits(kCanonicalNaN),
                           max,
                           -max,
                           0x1p-126f,
                           -0x1p-126f,
                           0x1p-149f,
                           -0x1p-149f,
                           0x1.8p-130f,
                           0.5f,
                           3.0f,
                           -2.5f,
                           0x1.fffffep-127f,
                           0x1p-63f,
                           0x1.000002p0f};
  constexpr size_t kSpecials = std::size(special);
  const int64_t n = kSpecials * kSpecials + 1000;
  Tensor a = tensor({n}, Data::kWide, 1), b = tensor({n}, Data::kTiny, 2);
  for (size_t i = 0; i < kSpecials * kSpecials; ++i) {
    a.as<float>()[i] = special[i / kSpecials];
    b.as<float>()[i] = special[i % kSpecials];
  }
  return {a, b};
}

float maximum(float a, float b) {
  if (a != a || b != b) return from_bits(kCanonicalNaN);
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

float defined(OpKind kind, float a, float b, const NaiveArithmetic& n) {
  const auto flushed = [&](float x) { return n.flush ? flush(x) : x; };
  switch (kind) {
    case OpKind::kAdd:
      return n.add(a, b);
    case OpKind::kSubtract:
      return n.add(a, -b);
    case OpKind::kMultiply:
      return n.mul(a, b);
    case OpKind::kDivide:
      return n.div(a, b);
    case OpKind::kMaximum:
      return maximum(n.in(a), n.in(b));
    case OpKind::kMinimum:
      return -maximum(-n.in(a), -n.in(b));
    case OpKind::kSqrt:
      return std::sqrt(n.in(a));
    case OpKind::kRsqrt:
      return n.div(1.0f, std::sqrt(n.in(a)));
    case OpKind::kExponential:
      return flushed(exp_f32(n.in(a)));
    case OpKind::kLog:
      return flushed(log_f32(n.in(a)));
    case OpKind::kTanh:
      return flushed(tanh_f32(n.in(a)));
    case OpKind::kErf:
      return flushed(erf_f32(n.in(a)));
    case OpKind::kLog1p:
      return flushed(log1p_f32(n.in(a)));
    case OpKind::kSine:
      return flushed(sin_f32(n.in(a)));
    case OpKind::kCosine:
      return flushed(cos_f32(n.in(a)));
    case OpKind::kLogistic:
      return n.div(1.0f, n.add(1.0f, flushed(exp_f32(n.in(-a)))));
    case OpKind::kNegate:
      return -a;
    case OpKind::kAbs:
      return std::fabs(a);
    default:
      return 0;
  }
}

constexpr OpKind kFloatOps[] = {
    OpKind::kAdd,      OpKind::kSubtract, OpKind::kMultiply,    OpKind::kDivide, OpKind::kMaximum,
    OpKind::kMinimum,  OpKind::kSqrt,     OpKind::kRsqrt,       OpKind::kLog,    OpKind::kTanh,
    OpKind::kLogistic, OpKind::kNegate,   OpKind::kExponential, OpKind::kAbs,    OpKind::kErf,
    OpKind::kLog1p,    OpKind::kSine,     OpKind::kCosine};

TEST(Elementwise, EqualsDefinition) {
  const auto [a, b] = operands();
  for (OpKind kind : kFloatOps) {
    for (bool flush : {false, true}) {
      for (bool narrow : {false, true}) {
        const NaiveArithmetic n{flush};
        const Tensor x = narrow ? to_bf16(a) : a, y = narrow ? to_bf16(b) : b;
        Op op;
        op.kind = kind;
        op.type = x.type();
        const bool move = kind == OpKind::kNegate || kind == OpKind::kAbs;
        const bool binary = !move && defined(kind, 2, 3, {}) != defined(kind, 2, 5, {});
        std::vector<Tensor> inputs = {x};
        if (binary || kind == OpKind::kMaximum || kind == OpKind::kMinimum) inputs.push_back(y);
        ThreadPool pool(2);
        const Tensor got = run({&pool, {.flush = flush}}, op, inputs);
        for (size_t i = 0; i < static_cast<size_t>(x.elements()); ++i) {
          const auto v = [&](const Tensor& t) {
            return narrow ? bf16_to_f32(t.as<uint16_t>()[i]) : t.as<float>()[i];
          };
          const float want = canonical(defined(kind, v(x), v(y), n));
          if (narrow) {
            ASSERT_EQ(flush && !move ? bf16_round_flush(want) : bf16_round(want),
                      got.as<uint16_t>()[i])
                << static_cast<int>(kind);
          } else {
            ASSERT_EQ(to_bits(want), to_bits(got.as<float>()[i]))
                << static_cast<int>(kind) << " of " << v(x) << ", " << v(y) << " flush " << flush;
          }
        }
      }
    }
  }
}

TEST(Elementwise, CompareAndSelect) {
  const auto [a, b] = operands();
  const std::function<bool(float, float)> meaning[] = {
      std::equal_to<float>(),   std::not_equal_to<float>(), std::less<float>(),
      std::less_equal<float>(), std::greater<float>(),      std::greater_equal<float>()};
  for (int kind = 0; kind < 6; ++kind) {
    for (bool flush : {false, true}) {
      const NaiveArithmetic n{flush};
      Op op;
      op.kind = OpKind::kCompare;
      op.attrs.compare = static_cast<CompareKind>(kind);
      op.type = {DType::kPred, a.dims()};
      const KernelContext context{nullptr, {.flush = flush}};
      const Tensor p = run(context, op, {a, b});
      op.kind = OpKind::kSelect;
      op.type = a.type();
      const Tensor s = run(context, op, {p, a, b});
      for (size_t i = 0; i < a.as<float>().size(); ++i) {
        const float x = a.as<float>()[i], y = b.as<float>()[i];
        const bool want = meaning[kind](n.in(x), n.in(y));
        ASSERT_EQ(want, p.as<uint8_t>()[i] == 1) << kind << " of " << x << ", " << y;
        ASSERT_EQ(to_bits(want ? x : y), to_bits(s.as<float>()[i]));
      }
    }
  }
}

TEST(Elementwise, IntegersWrap) {
  Tensor a = Tensor::empty({DType::kI32, {4}}), b = Tensor::empty({DType::kI32, {4}});
  const int32_t x[] = {2147483647, -2147483647 - 1, 65536, -7}, y[] = {1, -1, 65537, 3};
  std::copy(x, x + 4, a.as<int32_t>().begin());
  std::copy(y, y + 4, b.as<int32_t>().begin());
  Op op;
  op.type = a.type();
  for (OpKind kind : {OpKind::kAdd, OpKind::kSubtract, OpKind::kMultiply}) {
    op.kind = kind;
    const Tensor r = run({}, op, {a, b});
    for (size_t i = 0; i < 4; ++i) {
      const int64_t p = x[i], q = y[i];
      const int64_t exact = kind == OpKind::kAdd        ? p + q
                            : kind == OpKind::kSubtract ? p - q
                                                        : p * q;
      EXPECT_EQ(r.as<int32_t>()[i], static_cast<int32_t>(static_cast<uint32_t>(exact)));
    }
  }
}

TEST(Convert, SaturatesAndRounds) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0f,
                                -0.0f,
                                1.9f,
                                -1.9f,
                                2147483520.0f,
                                2147483648.0f,
                                -2147483648.0f,
                                -2147483904.0f,
                                inf,
                                -inf,
                                from_bits(kCanonicalNaN),
                                1e-40f,
                                1.00390625f,
                                1.01171875f,
                                3.3961775e38f,
                                0.1f};
  Tensor t = Tensor::empty({DType::kF32, {static_cast<int64_t>(x.size())}});
  std::copy(x.begin(), x.end(), t.as<float>().begin());
  Op op;
  op.kind = OpKind::kConvert;
  op.type = {DType::kI32, t.dims()};
  const Tensor i = run({}, op, {t});
  const std::vector<int32_t> want = {0,
                                     0,
                                     1,
                                     -1,
                                     2147483520,
                                     2147483647,
                                     -2147483647 - 1,
                                     -2147483647 - 1,
                                     2147483647,
                                     -2147483647 - 1,
                                     0,
                                     0,
                                     1,
                                     1,
                                     2147483647,
                                     0};
  EXPECT_EQ(std::vector<int32_t>(i.as<int32_t>().begin(), i.as<int32_t>().end()), want);
  for (bool flush : {false, true}) {
    const KernelContext context{nullptr, {.flush = flush}};
    op.type = {DType::kBF16, t.dims()};
    const Tensor n = run(context, op, {t});
    op.type = t.type();
    const Tensor w = run(context, op, {n});
    for (size_t q = 0; q < x.size(); ++q) {
      EXPECT_EQ(n.as<uint16_t>()[q], flush ? bf16_round_flush(x[q]) : bf16_round(x[q]));
      EXPECT_EQ(to_bits(w.as<float>()[q]), to_bits(bf16_to_f32(n.as<uint16_t>()[q])));
    }
  }
  const Tensor f = run({}, op, {i});
  for (size_t q = 0; q < x.size(); ++q) EXPECT_EQ(f.as<float>()[q], static_cast<float>(want[q]));
}

TEST(Movement, BroadcastAndTranspose) {
  const Dims dims = {3, 20, 5, 33};
  const Tensor x = tensor(dims, Data::kSpecial, 4);
  const Dims permutations[] = {{0, 1, 2, 3}, {3, 2, 1, 0}, {0, 3, 1, 2},
                               {1, 0, 3, 2}, {3, 0, 1, 2}, {0, 2, 1, 3}};
  ThreadPool pool(2);
  for (const Dims& p : permutations) {
    Op op;
    op.kind = OpKind::kTranspose;
    op.attrs.dims = p;
    for (int64_t d : p) op.type.dims.push_back(dims[static_cast<size_t>(d)]);
    const Tensor got = run({&pool, {.flush = true}}, op, {x});
    for (int64_t i = 0; i < x.elements(); ++i) {
      int64_t rest = i, index[4];
      for (int d = 3; d >= 0; --d)
        index[p[static_cast<size_t>(d)]] = rest % op.type.dims[static_cast<size_t>(d)],
        rest /= op.type.dims[static_cast<size_t>(d)];
      const int64_t from =
          ((index[0] * dims[1] + index[1]) * dims[2] + index[2]) * dims[3] + index[3];
      ASSERT_EQ(to_bits(x.as<float>()[static_cast<size_t>(from)]),
                to_bits(got.as<float>()[static_cast<size_t>(i)]))
          << to_string(p);
    }
  }
  Op op;
  op.kind = OpKind::kBroadcastInDim;
  op.attrs.dims = {1, 3};
  op.type.dims = {2, 7, 4, 9};
  for (bool one : {false, true}) {
    const Tensor v = tensor({7, one ? 1 : 9}, Data::kSpecial, 5);
    const Tensor got = run({&pool, {}}, op, {v});
    for (int64_t i = 0; i < got.elements(); ++i) {
      const int64_t from = i / 36 % 7 * v.dims()[1] + (one ? 0 : i % 9);
      ASSERT_EQ(to_bits(v.as<float>()[static_cast<size_t>(from)]),
                to_bits(got.as<float>()[static_cast<size_t>(i)]));
    }
  }
}

TEST(Movement, Sources) {
  Op op;
  op.kind = OpKind::kConstant;
  op.attrs.value = 0.1;
  op.type = {DType::kF32, {3, 5}};
  const Tensor wide = run({}, op, {});
  for (float v : wide.as<float>()) EXPECT_EQ(v, 0.1f);
  op.type.dtype = DType::kBF16;
  const Tensor narrow = run({}, op, {});
  for (uint16_t v : narrow.as<uint16_t>()) EXPECT_EQ(v, bf16_round(0.1f));
  op.kind = OpKind::kIota;
  op.attrs.dims = {1};
  op.type = {DType::kI32, {2, 3, 4}};
  const Tensor t = run({}, op, {});
  for (int32_t i = 0; i < 24; ++i) EXPECT_EQ(t.as<int32_t>()[static_cast<size_t>(i)], i / 4 % 3);
}

TEST(Random, EqualsDraw) {
  const Tensor step = Tensor::scalar_i32(7);
  Tensor samples = Tensor::empty({DType::kI32, {5}});
  for (int32_t i = 0; i < 5; ++i) samples.as<int32_t>()[static_cast<size_t>(i)] = 100 - 3 * i;
  Op op;
  op.kind = OpKind::kRngUniform;
  op.attrs.seed = 0x123456789ABCDEFull;
  op.attrs.stream = 3;
  op.type = {DType::kF32, {5, 3, 11}};
  ThreadPool pool(3);
  const Tensor got = run({&pool, {}}, op, {step, samples});
  for (size_t i = 0; i < 165; ++i) {
    const auto sample = static_cast<uint32_t>(samples.as<int32_t>()[i / 33]);
    EXPECT_EQ(got.as<float>()[i],
              uniform(draw({op.attrs.seed, kStreamOps + 3}, 7, sample, i % 33)));
  }
}

}  // namespace
}  // namespace twinrun::kernels_elementwise_test
