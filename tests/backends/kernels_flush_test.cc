// Tests of flushing around the smallest normal number, where processors differ (float_mode.h): in
// both modes, products, fused multiply-adds and roundings of binary64 numbers must be those of the
// contract, and so must the kernels that are made of them.
#include <gtest/gtest.h>

#include "backends/kernels/arithmetic.h"
#include "tests/backends/kernels_naive.h"

namespace twinrun::kernels_flush_test {
namespace {

using namespace naive;

// Whether an exact result is below 2^-126 and yet rounds to it with 24 bits.
bool rounds_up(Quad exact) {
  const Quad size = exact < 0 ? -exact : exact;
  return size < Quad(0x1p-126) && !tiny(exact);
}

struct Triple {
  float a, b, c;
};
float either_sign(std::mt19937& g, float x) { return g() % 2 == 0 ? x : -x; }
float significand(std::mt19937& g) { return 1 + static_cast<float>(g() >> 9) * 0x1p-23f; }

// Factors whose product is within two ulps of `target`.
Triple factors(std::mt19937& g, float target) {
  Triple t;
  t.a = either_sign(g, std::ldexp(significand(g), static_cast<int>(g() % 100) - 90));
  t.b = from_bits(to_bits(static_cast<float>(double{target} / t.a)) + g() % 5 - 2);
  t.c = 0;
  return t;
}

// Operands whose results lie on both sides of every limit. With `sums`, c moves the product into
// the range; else it is a zero.
std::vector<Triple> operands(bool sums) {
  std::mt19937 g(7);
  std::vector<Triple> list;
  for (int i = 0; i < 100000; ++i) {
    const float c = either_sign(g, sums ? std::ldexp(1.0f, static_cast<int>(g() % 6) - 126) : 0);
    const float want = either_sign(g, 0x1p-126f);
    Triple t = factors(g, sums ? want - c : want);
    t.c = i % 7 == 0 ? from_bits(g() & 0x807FFFFFu) : c;  // a denormal
    if (i % 11 == 0) t.a = from_bits(g() & 0x807FFFFFu);
    list.push_back(t);
  }
  return list;
}

// f(triple) for each, in the given mode of the thread.
template <typename F>
std::vector<float> in_mode(bool flush, const std::vector<Triple>& list, F f) {
  std::vector<float> results(list.size());
  const FlushScope scope(flush);
  for (size_t i = 0; i < list.size(); ++i) results[i] = f(list[i]);
  return results;
}

TEST(Flush, ProductsAreTheContracts) {
  const std::vector<Triple> list = operands(false);
  for (const bool flush : {false, true}) {
    const NaiveArithmetic naive{flush};
    const std::vector<float> got =
        in_mode(flush, list, [](const Triple& t) { return multiplied(t.a, t.b); });
    int up = 0;
    for (size_t i = 0; i < list.size(); ++i) {
      const auto [a, b, c] = list[i];
      up += rounds_up(Quad(a) * b) ? 1 : 0;
      ASSERT_EQ(to_bits(got[i]), to_bits(naive.mul(a, b)))
          << std::hexfloat << a << " * " << b << (flush ? ", flushed" : "");
    }
    EXPECT_GT(up, 1000);
  }
}

TEST(Flush, QuotientsAndSumsNeedNoCare) {
  for (const bool flush : {false, true}) {
    const NaiveArithmetic naive{flush};
    std::vector<Triple> list = operands(false);
    for (Triple& t : list) t.a = from_bits(to_bits(0x1p-126f * t.b) + to_bits(t.a) % 3 - 1);
    const std::vector<float> quotients =
        in_mode(flush, list, [](const Triple& t) { return t.a / t.b; });
    for (size_t i = 0; i < list.size(); ++i) {
      const auto [a, b, c] = list[i];
      ASSERT_EQ(to_bits(quotients[i]), to_bits(naive.div(a, b)))
          << std::hexfloat << a << " / " << b << (flush ? ", flushed" : "");
    }
    std::mt19937 g(3);
    for (Triple& t : list) {
      t.a = either_sign(g, std::ldexp(significand(g), static_cast<int>(g() % 4) - 126));
      t.b = from_bits((to_bits(t.a) ^ 0x80000000u) + g() % 5 - 2 + (g() % 3 << 23));
    }
    const std::vector<float> sums = in_mode(flush, list, [](const Triple& t) { return t.a + t.b; });
    for (size_t i = 0; i < list.size(); ++i) {
      ASSERT_EQ(to_bits(sums[i]), to_bits(naive.add(list[i].a, list[i].b)))
          << std::hexfloat << list[i].a << " + " << list[i].b << (flush ? ", flushed" : "");
    }
  }
}

TEST(Flush, FusedMultiplyAddsAreTheContracts) {
  for (const bool sums : {false, true}) {
    const std::vector<Triple> list = operands(sums);
    for (const bool flush : {false, true}) {
      const NaiveArithmetic naive{flush};
      const std::vector<float> got =
          in_mode(flush, list, [](const Triple& t) { return fused(t.a, t.b, t.c); });
      int up = 0;
      for (size_t i = 0; i < list.size(); ++i) {
        const auto [a, b, c] = list[i];
        up += rounds_up(Quad(a) * b + c) ? 1 : 0;
        ASSERT_EQ(to_bits(got[i]), to_bits(naive.fma(a, b, c)))
            << std::hexfloat << a << " * " << b << " + " << c << (flush ? ", flushed" : "");
      }
      EXPECT_GT(up, 1000);
    }
  }
}

TEST(Flush, RoundingsOfBinary64AreTheContracts) {
  std::vector<double> x;
  for (const double limit : {0x1p-126, 0x1p-126 - 0x1p-151, 0x1p-126 - 0x1p-150, 0x1p-149}) {
    for (int step = -100; step <= 100; ++step) {
      const double near = std::bit_cast<double>(std::bit_cast<uint64_t>(limit) +
                                                static_cast<uint64_t>(int64_t{step}));
      x.insert(x.end(), {near, -near, limit + step * 0x1p-155, -limit - step * 0x1p-155});
    }
  }
  for (const bool flush : {false, true}) {
    std::vector<float> got(x.size());
    {
      const FlushScope scope(flush);
      for (size_t i = 0; i < x.size(); ++i) got[i] = narrowed(x[i]);
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const float want = flush && tiny(x[i]) ? zero_like(x[i]) : static_cast<float>(x[i]);
      ASSERT_EQ(to_bits(got[i]), to_bits(want))
          << std::hexfloat << x[i] << (flush ? ", flushed" : "");
    }
  }
}

// Chains that pass the limit: +-2^-126 by one product, then +-2^-151 by another.
Tensor at_the_edge(Dims dims, uint32_t seed) {
  Tensor t = Tensor::empty({DType::kF32, std::move(dims)});
  std::mt19937 g(seed);
  for (float& x : t.as<float>()) {
    static constexpr float kSizes[] = {0x1p-63f, 0x1p-75f,    0x1p-76f,
                                       0x1p-88f, 0x1.02p-63f, 0x1p-126f};
    x = g() % 4 == 0 ? 0.0f : either_sign(g, kSizes[g() % 6]);
  }
  return t;
}

TEST(Flush, TilesAreTheContracts) {
  constexpr int64_t kM = 37, kN = 41;
  ThreadPool pool(2);
  for (const DotArithmetic arithmetic : {DotArithmetic::kF32, DotArithmetic::kBf16}) {
    for (const int64_t k : {3, 32, 75}) {
      const Tensor a = at_the_edge({kM, k}, 1), b = at_the_edge({k, kN}, 2);
      const float *pa = a.as<float>().data(), *pb = b.as<float>().data();
      Op op;
      op.kind = OpKind::kDotGeneral;
      op.attrs.lhs_contract = 1;
      op.attrs.rhs_contract = 0;
      op.type = {DType::kF32, {kM, kN}};
      for (const Isa isa : isas(arithmetic)) {
        const IsaScope scope(isa);
        if (!scope.there()) continue;
        const Tensor got = run({&pool, {.dot = arithmetic, .flush = true}}, op, {a, b});
        int smallest = 0;
        for (int64_t i = 0; i < kM; ++i) {
          for (int64_t j = 0; j < kN; ++j) {
            const float want = dot(
                arithmetic, [&](int64_t q) { return pa[i * k + q]; },
                [&](int64_t q) { return pb[q * kN + j]; }, k, k, true);
            smallest += std::fabs(want) == 0x1p-126f ? 1 : 0;
            ASSERT_EQ(to_bits(got.as<float>()[static_cast<size_t>(i * kN + j)]), to_bits(want))
                << to_string(isa) << ", k " << k << ", element " << i << ", " << j;
          }
        }
        EXPECT_GT(smallest, 10);
      }
    }
  }
}

TEST(Flush, BlocksAreTheContracts) {
  const std::vector<Triple> list = operands(false);
  const auto n = static_cast<int64_t>(list.size());
  Tensor a = Tensor::empty({DType::kF32, {n}}), b = Tensor::empty({DType::kF32, {n}});
  for (size_t i = 0; i < list.size(); ++i)
    a.as<float>()[i] = list[i].a, b.as<float>()[i] = list[i].b;
  Op op;
  op.kind = OpKind::kMultiply;
  op.type = {DType::kF32, {n}};
  ThreadPool pool(2);
  for (const bool flush : {false, true}) {
    const Tensor got = run({&pool, {.flush = flush}}, op, {a, b});
    for (size_t i = 0; i < list.size(); ++i) {
      ASSERT_EQ(to_bits(got.as<float>()[i]),
                to_bits(NaiveArithmetic{flush}.mul(list[i].a, list[i].b)))
          << std::hexfloat << list[i].a << " * " << list[i].b << (flush ? ", flushed" : "");
    }
  }
}

}  // namespace
}  // namespace twinrun::kernels_flush_test
