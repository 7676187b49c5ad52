// Tests of products by VDPBF16PS. The self test must accept the instruction's two steps and notice
// every other order, flushing or rounding. A model in plain C++ runs the same packing on every
// machine; the instruction itself runs where there is one. kernels_{dot,convolution,digest}_test.cc
// and ops_bits_test.cc run it, too.
#if defined(__x86_64__)

#include <gtest/gtest.h>
#include <immintrin.h>

#include "backends/kernels/gemm.h"
#include "backends/kernels/gemm_quads_tiles.h"
#include "tests/backends/whole_products.h"

namespace twinrun::kernels_quads_test {
namespace {

using namespace naive;

// ---- the model: two steps of a chain, and the rounding of operands

// The operands of a lane, each with a lower and an upper half.
struct Operands {
  float lower[2], upper[2];
};
using Steps = float (*)(float c, const Operands& o);
using Rounding = uint16_t (*)(float x);

// Called in a section that flushes, like the real tiles.
float upper_first(float c, const Operands& o) {
  return std::fma(o.lower[0], o.lower[1], std::fma(o.upper[0], o.upper[1], c));
}

// What the model does. It is not a template's parameter, because the compiler takes five seconds for
// each set of tiles.
Steps steps_of_model = upper_first;
Rounding rounding_of_model = bf16_round_flush;

struct Model {
  static constexpr int kLanes = 16;
  struct reg {
    float x[16];
  };
  struct pairs {
    uint32_t x[16];
  };
  static reg load(const float* p) { return load_some(p, 16); }
  static reg load_some(const float* p, int n) {
    reg r{};
    std::memcpy(r.x, p, static_cast<size_t>(n) * 4);
    return r;
  }
  static void store(float* p, reg r) { store_some(p, r, 16); }
  static void store_some(float* p, reg r, int n) {
    std::memcpy(p, r.x, static_cast<size_t>(n) * 4);
  }
  static reg zero() { return {}; }
  static reg add(reg a, reg b) {
    for (int i = 0; i < 16; ++i) a.x[i] += b.x[i];
    return a;
  }
  static reg canonical(reg a) {
    for (float& x : a.x) x = twinrun::canonical(x);
    return a;
  }
  static pairs load_pairs(const uint32_t* p) {
    pairs r;
    std::memcpy(r.x, p, sizeof r.x);
    return r;
  }
  static pairs set1_pairs(const uint32_t* p) {
    pairs r;
    for (uint32_t& x : r.x) std::memcpy(&x, p, sizeof x);
    return r;
  }
  static reg dot(reg c, pairs x, pairs y) {
    for (int i = 0; i < 16; ++i) {
      const auto lower = [](uint32_t word) { return from_bits(word << 16); };
      const auto upper = [](uint32_t word) { return from_bits(word & 0xFFFF0000u); };
      c.x[i] =
          steps_of_model(c.x[i], {{lower(x.x[i]), lower(y.x[i])}, {upper(x.x[i]), upper(y.x[i])}});
    }
    return c;
  }

  static constexpr int64_t kRows = 16, kMostTiles = 36;
  static constexpr bool kWholeTiles = false;
  static void narrow(const float* from, uint16_t* to, int n) {
    for (int i = 0; i < n; ++i) to[i] = rounding_of_model(from[i]);
  }
  static void arrange(uint16_t* block) {
    uint16_t copy[32];
    std::memcpy(copy, block, sizeof copy);
    for (int w = 0; w < 16; ++w) {
      block[2 * w] = copy[lower_k(Packing::kQuads, w)];
      block[2 * w + 1] = copy[upper_k(Packing::kQuads, w)];
    }
  }
  static void whole_block(const float* from, uint16_t* to, int64_t) {
    narrow(from, to, 32);
    arrange(to);
  }
  static void image_of_columns(const float* a, const int64_t* offsets, int64_t k, int rows,
                               uint32_t, uint16_t* image) {
    for (int w = 0; w < 16; ++w) {
      for (int i = 0; i < rows; ++i) {
        const int at[] = {lower_k(Packing::kQuads, w), upper_k(Packing::kQuads, w)};
        for (int half = 0; half < 2; ++half)
          image[w * 32 + i * 2 + half] =
              at[half] < k ? rounding_of_model(a[offsets[at[half]] + i]) : 0;
      }
    }
  }
};

const GemmKernels kModel = {.rows = 2 * kQuadsRows,
                            .lanes = 16,
                            .packing = Packing::kQuads,
                            .block = multiply_quads<Model>,
                            .rounds_a = true};

// ---- the self test, on units that are not quite VDPBF16PS

// Computes without the flushing of the section around it.
template <typename F>
__attribute__((noinline)) float unflushed(F&& f) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr(0x1F80);
  asm volatile("" ::: "memory");
  volatile float result = f();
  asm volatile("" ::: "memory");
  _mm_setcsr(saved);
  return result;
}
float product(const float* x) {
  volatile float rounded = x[0] * x[1];
  return rounded;
}

float lower_first(float c, const Operands& o) {
  return std::fma(o.upper[0], o.upper[1], std::fma(o.lower[0], o.lower[1], c));
}
float rounded_products(float c, const Operands& o) {
  return (c + product(o.upper)) + product(o.lower);
}
float sum_of_products_first(float c, const Operands& o) {
  return c + std::fma(o.lower[0], o.lower[1], product(o.upper));
}
float one_rounding(float c, const Operands& o) {
  const auto wide = [](const float* x) { return Quad(x[0]) * x[1]; };
  return flush(static_cast<float>(Quad(c) + wide(o.upper) + wide(o.lower)));
}
float no_flush(float c, const Operands& o) {
  return unflushed([&] { return upper_first(c, o); });
}
float flushed_after_ieee(float c, const Operands& o) {
  return unflushed([&] {
    const auto step = [](float acc, const float* x) {
      return flush(std::fma(flush(x[0]), flush(x[1]), flush(acc)));
    };
    return step(step(c, o.upper), o.lower);
  });
}
float flushed_before_rounding(float c, const Operands& o) {
  return unflushed([&] {
    const auto step = [](float acc, const float* x) {
      const Quad exact = Quad(flush(x[0])) * flush(x[1]) + acc;
      const Quad size = exact < 0 ? -exact : exact;
      return size != 0 && size < Quad(0x1p-126) ? zero_like(exact)
                                                : std::fma(flush(x[0]), flush(x[1]), acc);
    };
    return step(step(c, o.upper), o.lower);
  });
}

uint16_t truncated(float x) {
  return x != x ? 0x7FC0 : static_cast<uint16_t>(to_bits(flush(x)) >> 16);
}
uint16_t ties_away(float x) {
  return x != x ? 0x7FC0 : static_cast<uint16_t>((to_bits(flush(x)) + 0x8000u) >> 16);
}
uint16_t denormals_rounded(float x) { return bf16_round(x); }
uint16_t saturated(float x) {
  const uint16_t r = bf16_round_flush(x);
  return (r & 0x7FFFu) == 0x7F80 && std::isfinite(x) ? static_cast<uint16_t>(r - 1) : r;
}

TEST(QuadsSelfTest, AcceptsTheOrderAndNothingElse) {
  const auto accepts = [](Steps steps, Rounding rounding = bf16_round_flush) {
    steps_of_model = steps;
    rounding_of_model = rounding;
    const bool accepted = keeps_amx_order(kModel);
    steps_of_model = upper_first;
    rounding_of_model = bf16_round_flush;
    return accepted;
  };
  EXPECT_TRUE(accepts(upper_first));
  for (const Steps steps : {lower_first, rounded_products, sum_of_products_first, one_rounding,
                            no_flush, flushed_after_ieee, flushed_before_rounding})
    EXPECT_FALSE(accepts(steps));
  for (const Rounding rounding : {truncated, ties_away, denormals_rounded, saturated})
    EXPECT_FALSE(accepts(upper_first, rounding));
}

// ---- whole products

// Every length of k up to two blocks, so that each cuts the last four k of a block in another way.
void expect_every_k(const GemmKernels& quads) {
  const int64_t m = 31, n = 70;
  ThreadPool pool(2);
  const KernelContext context{&pool, {.dot = DotArithmetic::kBf16, .flush = true, .poison = true}};
  for (int64_t k = 1; k <= 65; ++k) {
    for (const Data data : {Data::kUniform, Data::kSmall, Data::kSpecial}) {
      const auto seed = static_cast<uint32_t>(k);
      const Tensor a = tensor({m, k}, data, seed), b = tensor({k, n}, data, seed + 100);
      const float *pa = a.as<float>().data(), *pb = b.as<float>().data();
      for (const MatrixA& lhs : {MatrixA{pa, k, 1}, MatrixA{pa, 1, m}}) {
        for (const MatrixB& rhs : {MatrixB{pb, 1, n, k, 0}, MatrixB{pb, k, 1, k, 0}}) {
          const auto result = [&](const GemmKernels& tiles, Terms terms) {
            Tensor c = Tensor::zeros({DType::kF32, {m, n}});
            dense_gemm(GemmPlan(context, tiles), {m, n, k, lhs, rhs, c.as<float>().data(), n},
                       terms);
            return c;
          };
          for (const Terms& terms :
               {Terms{Term::kFirst, Term::kFirst}, Terms{Term::kSecond, Term::kFirst},
                Terms{Term::kFirst, Term::kThird}}) {
            ASSERT_EQ(first_difference(result(kGemmAvx2, terms), result(quads, terms)), -1)
                << "k " << k << " data " << static_cast<int>(data);
          }
        }
      }
    }
  }
}

TEST(QuadsModel, EqualsTheVectorTilesForEveryK) { expect_every_k(kModel); }

TEST(QuadsTiles, EqualTheVectorTilesForEveryK) {
  if (!runs_avx512bf16()) GTEST_SKIP() << "no VDPBF16PS was run: " << avx512bf16_refusal();
  expect_every_k(kGemmAvx512Bf16);
}

TEST(QuadsTiles, EqualTheVectorTiles) {
  if (!runs_avx512bf16()) GTEST_SKIP() << "no VDPBF16PS was run: " << avx512bf16_refusal();
  expect_vector_bits(Isa::kAvx512Bf16);
}

TEST(QuadsTiles, PassTheirSelfTest) {
  if (!runs_avx512bf16()) GTEST_SKIP() << "no VDPBF16PS was run: " << avx512bf16_refusal();
  EXPECT_TRUE(keeps_amx_order(kGemmAvx512Bf16));
}

// Only dots of bf16 operands use them; what else there is stays with AVX-512.
TEST(QuadsTiles, AreForBf16) {
  EXPECT_EQ(gemm_kernels(Isa::kAvx512Bf16, true).packing, Packing::kQuads);
  EXPECT_EQ(&gemm_kernels(Isa::kAvx512Bf16, false), &kGemmAvx512);
  if (!runs_avx512bf16()) GTEST_SKIP() << "no VDPBF16PS was run: " << avx512bf16_refusal();
  const IsaScope scope(Isa::kAvx512Bf16);
  EXPECT_TRUE(vectors_of_512());
}

}  // namespace
}  // namespace twinrun::kernels_quads_test

#endif
