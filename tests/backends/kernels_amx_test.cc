// Tests of AMX tiles. The modelled unit and, where the machine has AMX, the real one must agree
// with the vector tiles on shapes of many tiles, panels and k blocks. The self test must notice
// every other order of operations. Where there is no AMX, its machine code runs under a trap.
// kernels_{dot,convolution,digest}_test.cc and ops_bits_test.cc run these tiles, too.
#include <gtest/gtest.h>

#include <algorithm>

#include "backends/kernels/amx_probe.h"
#include "backends/kernels/float_mode.h"
#include "backends/kernels/gemm.h"
#include "backends/kernels/gemm_amx_model.h"
#include "backends/kernels/gemm_amx_tiles.h"
#if defined(__x86_64__)
#include "tests/backends/amx_trap.h"
#endif
#include "tests/backends/whole_products.h"

namespace twinrun::kernels_amx_test {
namespace {

using namespace naive;

// ---- the self test, on units that are not quite AMX

// A TDPBF16PS with other steps: chain(c, x, y) is the new value of an element c of C, where x and y
// are the 32 bf16 operands of its row of A and its column of B.
template <typename Chain>
void each_element(float* c, const uint16_t* a, const uint16_t* b, Chain chain) {
  for (int m = 0; m < 16; ++m) {
    for (int n = 0; n < 16; ++n) {
      float x[32], y[32];
      for (int k = 0; k < 32; ++k) {
        x[k] = bf16_to_f32(a[m * 32 + k]);
        y[k] = bf16_to_f32(b[k / 2 * 32 + 2 * n + k % 2]);
      }
      c[m * 16 + n] = chain(c[m * 16 + n], x, y);
    }
  }
}
constexpr NaiveArithmetic kFlushing{true}, kIeee{false};

float multiply_add(float c, const float* x, const float* y, const NaiveArithmetic& n, float even,
                   float odd) {
  for (int k = 0; k < 32; k += 2) even = n.fma(x[k], y[k], even);
  for (int k = 1; k < 32; k += 2) odd = n.fma(x[k], y[k], odd);
  return n.add(c, n.add(even, odd));
}

template <float (*kChain)(float, const float*, const float*)>
class Unit : public TileModel {
 public:
  template <int C, int A, int B>
  void dot() {
    dot_with<C, A, B>(
        [](float* c, const uint16_t* a, const uint16_t* b) { each_element(c, a, b, kChain); });
  }
};
template <float (*kChain)(float, const float*, const float*)>
bool passes() {
  return keeps_amx_order(
      {.rows = 32, .lanes = 16, .packing = Packing::kPairs, .block = multiply_tiles<Unit<kChain>>});
}

float faithful(float c, const float* x, const float* y) {
  return multiply_add(c, x, y, kFlushing, 0, 0);
}
float seeded_even(float c, const float* x, const float* y) {
  return multiply_add(0, x, y, kFlushing, c, 0);
}
float seeded_odd(float c, const float* x, const float* y) {
  return multiply_add(0, x, y, kFlushing, 0, c);
}
float no_flush(float c, const float* x, const float* y) {
  return multiply_add(c, x, y, kIeee, 0, 0);
}
float even_then_odd(float c, const float* x, const float* y) {
  float even = 0, odd = 0;
  for (int k = 0; k < 32; k += 2) even = kFlushing.fma(x[k], y[k], even);
  for (int k = 1; k < 32; k += 2) odd = kFlushing.fma(x[k], y[k], odd);
  return kFlushing.add(kFlushing.add(c, even), odd);
}
float one_chain(float c, const float* x, const float* y) {
  for (int k = 0; k < 32; ++k) c = kFlushing.fma(x[k], y[k], c);
  return c;
}
float pairs_odd_first(float c, const float* x, const float* y) {  // VDPBF16PS
  for (int k = 0; k < 32; k += 2)
    c = kFlushing.fma(x[k], y[k], kFlushing.fma(x[k + 1], y[k + 1], c));
  return c;
}
float backwards(float c, const float* x, const float* y) {
  float chain[2] = {0, 0};
  for (int k = 31; k >= 0; --k) chain[k % 2] = kFlushing.fma(x[k], y[k], chain[k % 2]);
  return kFlushing.add(c, kFlushing.add(chain[0], chain[1]));
}
float wide_sum(float c, const float* x, const float* y) {
  double sum = 0;
  for (int k = 0; k < 32; ++k) sum += static_cast<double>(x[k]) * y[k];
  return kFlushing.add(c, flush(static_cast<float>(sum)));
}
// Detects tiny results before rounding, so that 2^-126 - 2^-151 is flushed, too.
float flushed_before_rounding(float c, const float* x, const float* y) {
  const auto fma = [](float a, float b, float acc) {
    const Quad exact = Quad(flush(a)) * flush(b) + acc;
    const Quad size = exact < 0 ? -exact : exact;
    return size != 0 && size < Quad(0x1p-126) ? zero_like(exact) : kFlushing.fma(a, b, acc);
  };
  float chain[2] = {0, 0};
  for (int k = 0; k < 32; ++k) chain[k % 2] = fma(x[k], y[k], chain[k % 2]);
  return kFlushing.add(c, kFlushing.add(chain[0], chain[1]));
}
// Rounds as IEEE does, which can give 2^-126, and only then looks at the exponent.
float flushed_after_ieee(float c, const float* x, const float* y) {
  float chain[2] = {0, 0};
  for (int k = 0; k < 32; ++k)
    chain[k % 2] = flush(kIeee.fma(flush(x[k]), flush(y[k]), chain[k % 2]));
  return flush(flush(c) + flush(chain[0] + chain[1]));
}

TEST(AmxSelfTest, AcceptsTheOrderAndNothingElse) {
  EXPECT_TRUE(passes<faithful>());
  EXPECT_TRUE(keeps_amx_order(kGemmAmxModel));
  EXPECT_FALSE(passes<seeded_even>());
  EXPECT_FALSE(passes<seeded_odd>());
  EXPECT_FALSE(passes<no_flush>());
  EXPECT_FALSE(passes<even_then_odd>());
  EXPECT_FALSE(passes<one_chain>());
  EXPECT_FALSE(passes<pairs_odd_first>());
  EXPECT_FALSE(passes<backwards>());
  EXPECT_FALSE(passes<wide_sum>());
  EXPECT_FALSE(passes<flushed_before_rounding>());
  EXPECT_FALSE(passes<flushed_after_ieee>());
}

// The real instruction has one rounding mode and always flushes, so the model must ignore the mode
// of its thread.
TEST(AmxModel, IgnoresTheMode) {
#if defined(__x86_64__)
  const std::vector<FloatMode> modes = {0x1F80, 0x3F80, 0x5F80, 0x7F80, 0xFFC0};
#else
  const std::vector<FloatMode> modes = {0, 1 << 22, 2 << 22, 3 << 22,
                                        7 << 22};  // FPCR.RMode and FZ
#endif
  uint16_t a[512], b[512];
  for (int i = 0; i < 512; ++i) {
    a[i] = static_cast<uint16_t>(0x3F80 + i % 90);
    b[511 - i] = a[i];
  }
  float want[256] = {};
  tile_dot_model(want, a, b);
  const FloatMode saved = float_mode();
  for (const FloatMode mode : modes) {
    float c[256] = {};
    set_float_mode(mode);
    tile_dot_model(c, a, b);
    const FloatMode after = float_mode();
    set_float_mode(saved);
    EXPECT_EQ(after, mode);
    EXPECT_EQ(std::memcmp(c, want, sizeof c), 0) << mode;
  }
}

// ---- whole operations

TEST(AmxModel, EqualsTheVectorTiles) { expect_vector_bits(Isa::kAmxModel); }

#if defined(__x86_64__)

TEST(AmxTiles, EqualTheVectorTiles) {
  if (!amx_refusal().empty()) GTEST_SKIP() << "no AMX tiles were run: " << amx_refusal();
  const IsaScope scope(Isa::kAmx);
  ASSERT_EQ(active_isa(), Isa::kAmx);
  expect_vector_bits(Isa::kAmx);
}

TEST(AmxTiles, PassTheirSelfTest) {
  if (!amx_refusal().empty()) GTEST_SKIP() << "no AMX tiles were run: " << amx_refusal();
  EXPECT_TRUE(keeps_amx_order(kGemmAmx));
}

// ---- the machine code for AMX, under a trap that executes it in software where there is no AMX

TEST(AmxTrap, SelfTest) {
  if (!has_avx512bf16()) GTEST_SKIP() << "gemm_amx.cc needs AVX512-BF16";
  if (amx_refusal() != "no AMX") GTEST_SKIP() << "nothing would trap here";
  const AmxTrap trap;
  EXPECT_TRUE(keeps_amx_order(kGemmAmx));
  EXPECT_GT(trap.dots(), 500);
  EXPECT_FALSE(AmxTrap::configured());
}

TEST(AmxTrap, DenseProducts) {
  if (!has_avx512bf16()) GTEST_SKIP() << "gemm_amx.cc needs AVX512-BF16";
  if (amx_refusal() != "no AMX") GTEST_SKIP() << "nothing would trap here";
  const int64_t m = 331, n = 70, k = 300;
  const Tensor a = tensor({m, k}, Data::kSpecial, 1), b = tensor({k, n}, Data::kSpecial, 2);
  const float *pa = a.as<float>().data(), *pb = b.as<float>().data();
  ThreadPool pool(2);
  const KernelContext context{&pool, {.dot = DotArithmetic::kBf16, .flush = true, .poison = true}};
  for (const MatrixA& lhs : {MatrixA{pa, k, 1}, MatrixA{pa, 1, m}}) {
    for (const MatrixB& rhs : {MatrixB{pb, 1, n, k, 0}, MatrixB{pb, k, 1, k, 0}}) {
      const auto result = [&](const GemmKernels& kernels) {
        Tensor c = Tensor::zeros({DType::kF32, {m, n}});
        dense_gemm(GemmPlan(context, kernels), {m, n, k, lhs, rhs, c.as<float>().data(), n},
                   {Term::kFirst, Term::kFirst});
        return c;
      };
      const AmxTrap trap;
      const Tensor got = result(kGemmAmx);
      EXPECT_EQ(trap.dots(), (331 + 15) / 16 * 5 * 10);
      EXPECT_EQ(first_difference(result(kGemmAvx512), got), -1);
    }
  }
}

#endif

TEST(AmxTiles, AreNotUsedWhereTheyAreRefused) {
  if (amx_refusal().empty()) GTEST_SKIP() << "this machine has AMX tiles";
  const IsaScope scope(Isa::kAmx);
  EXPECT_NE(active_isa(), Isa::kAmx);
  EXPECT_NE(gemm_kernels(active_isa(), true).packing, Packing::kPairs);
}

}  // namespace
}  // namespace twinrun::kernels_amx_test
