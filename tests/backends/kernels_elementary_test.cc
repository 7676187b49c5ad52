// Tests exp, log, tanh, erf, log1p, sin and cos against MPFR, which rounds correctly: bits must be equal.
// TWINRUN_ELEMENTARY_SAMPLES sets the number of random arguments per function (tests/prove checks
// all 2^32 arguments).
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/elementary.h"
#include "program/base/bits.h"
#include "tests/reference/correctly_rounded.h"

namespace twinrun::kernels_elementary_test {
namespace {

using ArrayFunction = void (*ElementaryKernels::*)(const float*, float*, int64_t);

int64_t samples() {
  const char* text = std::getenv("TWINRUN_ELEMENTARY_SAMPLES");
  return text != nullptr ? std::atoll(text) : 200000;
}

void check(const char* name, ArrayFunction ours, CorrectlyRounded::Function theirs) {
  const CorrectlyRounded truth(theirs);
  std::vector<float> x, y(kElementaryChunk), other(kElementaryChunk);
  int64_t wrong = 0;
  const auto flush_batch = [&] {
    const auto n = static_cast<int64_t>(x.size());
    (elementary_kernels(Isa::kAvx2).*ours)(x.data(), y.data(), n);
    if (vectors_of_512()) {
      (elementary_kernels(Isa::kAvx512).*ours)(x.data(), other.data(), n);
      for (size_t i = 0; i < x.size(); ++i)
        ASSERT_EQ(to_bits(other[i]), to_bits(y[i])) << name << " of " << std::hexfloat << x[i];
    }
    for (size_t i = 0; i < x.size(); ++i) {
      const float want = truth(x[i]);
      if (to_bits(want) != to_bits(y[i]) && ++wrong < 10) {
        ADD_FAILURE() << name << "(" << std::hexfloat << x[i] << ") is " << want << ", got "
                      << y[i];
      }
    }
    x.clear();
  };
  const auto add = [&](uint32_t bits) {
    x.push_back(from_bits(bits));
    if (static_cast<int64_t>(x.size()) == kElementaryChunk) flush_batch();
  };
  // Both ends and the middle of every binade of both signs.
  for (uint32_t top = 0; top < 512; ++top) {
    for (uint32_t d = 0; d < 40; ++d) {
      for (uint32_t from : {0u, 0x400000u, 0x7FFFD8u, 0x3504D0u})
        add((top << 23) + ((from + d) & 0x7FFFFF));
    }
  }
  // Arguments where results overflow, become denormal or zero, or saturate, and around 1.
  for (float edge : {88.7228394f, -87.3365479f, -103.972084f, -103.278929f, 9.01091385f, 1.0f, 0.0f,
                     4.0f, 3.83250689f, 0.000244140625f}) {
    for (uint32_t d = 0; d < 4000; ++d) {
      add(to_bits(edge) - 2000 + d);
      add((to_bits(edge) - 2000 + d) ^ 0x80000000u);
    }
  }
  std::mt19937_64 g(7);
  for (int64_t i = 0; i < samples(); ++i) {
    const auto r = static_cast<uint32_t>(g() >> 32);
    // Half of the arguments lie where the functions are neither 0, 1 nor Inf.
    add(i % 2 == 0 ? r : (r & 0x8FFFFFFFu) + 0x34000000u);
  }
  flush_batch();
  EXPECT_EQ(wrong, 0) << name;
}

TEST(Elementary, ExpIsCorrectlyRounded) { check("exp", &ElementaryKernels::exp, mpfr_exp); }
TEST(Elementary, LogIsCorrectlyRounded) { check("log", &ElementaryKernels::log, mpfr_log); }
TEST(Elementary, TanhIsCorrectlyRounded) { check("tanh", &ElementaryKernels::tanh, mpfr_tanh); }

TEST(Elementary, ErfIsCorrectlyRounded) { check("erf", &ElementaryKernels::erf, mpfr_erf); }
TEST(Elementary, Log1pIsCorrectlyRounded) { check("log1p", &ElementaryKernels::log1p, mpfr_log1p); }
TEST(Elementary, SinIsCorrectlyRounded) { check("sin", &ElementaryKernels::sin, mpfr_sin); }
TEST(Elementary, CosIsCorrectlyRounded) { check("cos", &ElementaryKernels::cos, mpfr_cos); }

// The binary32 numbers that are nearest to multiples of pi / 2, where sin or cos is smallest.
TEST(Elementary, SinAndCosNearMultiplesOfHalfPi) {
  const CorrectlyRounded sine(mpfr_sin), cosine(mpfr_cos);
  for (int k = 0; k < 105; ++k) {
    for (const double factor : {1.0, 3.0, 5.0, 7.0, 11.0, 12345.0, 1048575.0}) {
      const auto x = static_cast<float>(std::ldexp(factor * 0x1.921fb54442d18p+0, k));
      for (const float v : {x, -x, 0x1.47d0fep+34f, 0x1.6ac5b262ca1ffp+49f}) {
        if (!std::isfinite(v)) continue;
        EXPECT_EQ(to_bits(sin_f32(v)), to_bits(sine(v))) << std::hexfloat << v;
        EXPECT_EQ(to_bits(cos_f32(v)), to_bits(cosine(v))) << std::hexfloat << v;
      }
    }
  }
}

TEST(Elementary, SpecialValues) {
  const float inf = std::numeric_limits<float>::infinity(), nan = from_bits(0xFFC01234u);
  EXPECT_EQ(exp_f32(inf), inf);
  EXPECT_EQ(to_bits(exp_f32(-inf)), 0u);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(log_f32(inf), inf);
  EXPECT_EQ(log_f32(-0.0f), -inf);
  EXPECT_EQ(log_f32(0.0f), -inf);
  EXPECT_EQ(to_bits(log_f32(1.0f)), 0u);
  EXPECT_EQ(to_bits(log_f32(-1.0f)), kCanonicalNaN);
  EXPECT_EQ(tanh_f32(inf), 1.0f);
  EXPECT_EQ(tanh_f32(-inf), -1.0f);
  EXPECT_EQ(to_bits(tanh_f32(-0.0f)), 0x80000000u);
  EXPECT_EQ(erf_f32(inf), 1.0f);
  EXPECT_EQ(erf_f32(-inf), -1.0f);
  EXPECT_EQ(to_bits(erf_f32(-0.0f)), 0x80000000u);
  EXPECT_EQ(to_bits(erf_f32(0.0f)), 0u);
  EXPECT_EQ(log1p_f32(inf), inf);
  EXPECT_EQ(log1p_f32(-1.0f), -inf);
  EXPECT_EQ(to_bits(log1p_f32(-0.0f)), 0x80000000u);
  EXPECT_EQ(to_bits(log1p_f32(0.0f)), 0u);
  EXPECT_EQ(to_bits(log1p_f32(-0x1.000002p+0f)), kCanonicalNaN);
  EXPECT_EQ(to_bits(log1p_f32(-inf)), kCanonicalNaN);
  EXPECT_EQ(to_bits(sin_f32(-0.0f)), 0x80000000u);
  EXPECT_EQ(cos_f32(-0.0f), 1.0f);
  for (auto f : {sin_f32, cos_f32}) {
    EXPECT_EQ(to_bits(f(inf)), kCanonicalNaN);
    EXPECT_EQ(to_bits(f(-inf)), kCanonicalNaN);
  }
  for (auto f : {exp_f32, log_f32, tanh_f32, erf_f32, log1p_f32, sin_f32, cos_f32})
    EXPECT_EQ(to_bits(f(nan)), kCanonicalNaN);
}

// Under flushing, "tiny after rounding with unbounded exponent" must not differ from rounding first
// and flushing afterwards: no binary32 argument has its exp in [2^-126 - 2^-150 .. 2^-126).
TEST(Elementary, FlushedExpIsFlushOfExp) {
  float x[kElementaryChunk], y[kElementaryChunk], z[kElementaryChunk];
  for (uint32_t base = to_bits(-87.0f); base < to_bits(-88.0f); base += kElementaryChunk) {
    for (uint32_t i = 0; i < kElementaryChunk; ++i) x[i] = from_bits(base + i);
    exp_array(x, y, kElementaryChunk);
    {
      const FlushScope scope(true);
      exp_array(x, z, kElementaryChunk);
    }
    for (int64_t i = 0; i < kElementaryChunk; ++i) {
      ASSERT_EQ(to_bits(flush(y[i])), to_bits(z[i])) << std::hexfloat << x[i];
    }
  }
}

}  // namespace
}  // namespace twinrun::kernels_elementary_test
