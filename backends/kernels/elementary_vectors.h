// The vector code of the elementary functions, for the instruction set of the file that includes
// it: elementary.cc (AVX2) or elementary_avx512.cc. Every operation is written out (fma where one
// is meant), so the number of lanes changes no bit.
#pragma once

#include <stdint.h>

#include "backends/kernels/elementary_kernels.h"
#include "backends/kernels/float_mode.h"

namespace twinrun {
namespace {

// ln 2 as a sum of binary64 terms: 0x0.b17217f7d1cf79abc9e3b39803f2f6af40f343267...
constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLn2b = 0x1.abc9e3b39803fp-56;
constexpr double kLog2e = 0x1.71547652b82fep+0;
constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer, held in the low bits

inline double as_double(uint64_t u) { return __builtin_bit_cast(double, u); }
inline uint64_t as_u64(double x) { return __builtin_bit_cast(uint64_t, x); }
inline float as_float(uint32_t u) { return __builtin_bit_cast(float, u); }
inline uint32_t as_u32(float x) { return __builtin_bit_cast(uint32_t, x); }
constexpr uint32_t kNaN32 = 0x7FC00000u;  // the canonical one
constexpr float kInfinity32 = __builtin_inff();

// exp(r) - 1 for |r| <= ln2/2: its Taylor series to r^13, with a remainder below 2^-57. Each
// coefficient is a rounded quotient of exact integers.
inline double expm1_reduced(double r) {
  double q = 1.0 / 6227020800.0;
  q = __builtin_fma(q, r, 1.0 / 479001600.0);
  q = __builtin_fma(q, r, 1.0 / 39916800.0);
  q = __builtin_fma(q, r, 1.0 / 3628800.0);
  q = __builtin_fma(q, r, 1.0 / 362880.0);
  q = __builtin_fma(q, r, 1.0 / 40320.0);
  q = __builtin_fma(q, r, 1.0 / 5040.0);
  q = __builtin_fma(q, r, 1.0 / 720.0);
  q = __builtin_fma(q, r, 1.0 / 120.0);
  q = __builtin_fma(q, r, 1.0 / 24.0);
  q = __builtin_fma(q, r, 1.0 / 6.0);
  q = __builtin_fma(q, r, 0.5);
  return __builtin_fma(q * r, r, r);
}

// exp(x) with a relative error of at most 2^-50 (two argument reductions by fma, 2^-54 each;
// polynomial 2^-52).
inline double exp_fast(double x) {
  const double t = __builtin_fma(x, kLog2e, kRound);
  const double n = t - kRound;
  const double r = __builtin_fma(n, -kLn2b, __builtin_fma(n, -kLn2, x));
  const double scale = as_double((as_u64(t) + 1023) << 52);
  return (1.0 + expm1_reduced(r)) * scale;
}

// log of 2^e m, with s = (m - 1) / (m + 1): e log 2 + 2 s (1 + s^2/3 + ... + s^20/21).
inline double log_of(double s, double e) {
  const double z = s * s;
  double q = 1.0 / 21.0;
  q = __builtin_fma(q, z, 1.0 / 19.0);
  q = __builtin_fma(q, z, 1.0 / 17.0);
  q = __builtin_fma(q, z, 1.0 / 15.0);
  q = __builtin_fma(q, z, 1.0 / 13.0);
  q = __builtin_fma(q, z, 1.0 / 11.0);
  q = __builtin_fma(q, z, 1.0 / 9.0);
  q = __builtin_fma(q, z, 1.0 / 7.0);
  q = __builtin_fma(q, z, 1.0 / 5.0);
  q = __builtin_fma(q, z, 1.0 / 3.0);
  const double s2 = s + s;
  return __builtin_fma(e, kLn2, __builtin_fma(s2 * z, q, s2));
}
// log(x) for x > 0 and finite, with m in [sqrt(1/2), sqrt(2)).
inline double log_fast(double x) {
  const uint64_t u = as_u64(x) - 0x3FE6A09E667F3BCDull;  // distance from sqrt(1/2)
  const uint64_t shifted = u >> 52;                      // exponent, modulo 2^12
  const double e =
      as_double(((shifted ^ 0x800) & 0xFFF) | 0x4330000000000000ull) - (0x1p52 + 0x800);
  const double m = as_double((u & 0x000FFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull);
  return log_of((m - 1.0) / (m + 1.0), e);
}

// tanh(x) for x >= 0, as expm1(2x) / (expm1(2x) + 2).
inline double tanh_fast(double x) {
  const double z = x + x;
  const double t = __builtin_fma(z, kLog2e, kRound);
  const double n = t - kRound;
  const double r = __builtin_fma(n, -kLn2b, __builtin_fma(n, -kLn2, z));
  const double scale = as_double((as_u64(t) + 1023) << 52);
  const double em = __builtin_fma(scale, expm1_reduced(r), scale - 1.0);
  return em / (em + 2.0);
}

// log(1 + x) for x > -1 and finite: log_fast of u = 1 + x, except that where u lies in [sqrt(1/2),
// sqrt(2)) x itself is used for m - 1, since x is exact where u is not. Elsewhere u is exact up to
// x = 2^29; beyond that its relative error of 2^-53 is negligible for a logarithm above 20.
inline double log1p_fast(double x) {
  const double one_plus = 1.0 + x;
  const uint64_t u = as_u64(one_plus) - 0x3FE6A09E667F3BCDull;
  const uint64_t shifted = u >> 52;
  const double e =
      as_double(((shifted ^ 0x800) & 0xFFF) | 0x4330000000000000ull) - (0x1p52 + 0x800);
  const double m = as_double((u & 0x000FFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull);
  const uint64_t near_one = shifted == 0 ? ~uint64_t{0} : 0;
  const double f = as_double((as_u64(x) & near_one) | (as_u64(m - 1.0) & ~near_one));
  return log_of(f / (f + 2.0), e);
}

constexpr double kTwoOverSqrtPi = 0x1.20dd750429b6dp+0;

// erf(x) for 0 <= x <= 1: 2 / sqrt(pi) * x * sum (-x^2)^n / (n! (2n + 1)). The remainder is below
// 2^-57 of the first term. The sum is at least 0.74 of the first term and the magnitudes of the
// terms add up to twice the sum, so the relative error is at most 2^-50.
inline double erf_small(double x) {
  const double z = -(x * x);  // exact
  double q = 1.0 / (355687428096000.0 * 35);
  q = __builtin_fma(q, z, 1.0 / (20922789888000.0 * 33));
  q = __builtin_fma(q, z, 1.0 / (1307674368000.0 * 31));
  q = __builtin_fma(q, z, 1.0 / (87178291200.0 * 29));
  q = __builtin_fma(q, z, 1.0 / (6227020800.0 * 27));
  q = __builtin_fma(q, z, 1.0 / (479001600.0 * 25));
  q = __builtin_fma(q, z, 1.0 / (39916800.0 * 23));
  q = __builtin_fma(q, z, 1.0 / (3628800.0 * 21));
  q = __builtin_fma(q, z, 1.0 / (362880.0 * 19));
  q = __builtin_fma(q, z, 1.0 / (40320.0 * 17));
  q = __builtin_fma(q, z, 1.0 / (5040.0 * 15));
  q = __builtin_fma(q, z, 1.0 / (720.0 * 13));
  q = __builtin_fma(q, z, 1.0 / (120.0 * 11));
  q = __builtin_fma(q, z, 1.0 / (24.0 * 9));
  q = __builtin_fma(q, z, 1.0 / (6.0 * 7));
  q = __builtin_fma(q, z, 1.0 / (2.0 * 5));
  q = __builtin_fma(q, z, 1.0 / 3);
  q = __builtin_fma(q, z, 1.0);
  return kTwoOverSqrtPi * x * q;
}
// erf(x) for 1 <= x <= 4: the polynomial of degree 25 in x - 5/2 (an exact difference) that equals
// erf at the Chebyshev points. Its error with rounded coefficients is at most 2^-50.5, and Horner's
// rule adds 2^-52.3. erf >= 0.84 here.
inline double erf_large(double x) {
  constexpr double kErf[] = {-0x1.98970669ec902p-40, -0x1.5706cb17e40cbp-39, 0x1.97dd9e2f729d2p-35,
                             -0x1.ab36731f7a425p-38, -0x1.74d60f34bc02ep-31, 0x1.71aff8b28df5dp-30,
                             0x1.32bf2a422c3a8p-28,  -0x1.a03e795c7901dp-26, 0x1.355eb47a70ccfp-26,
                             0x1.8287053d93a37p-23,  -0x1.58435bc5fb363p-21, 0x1.83b08e13f72acp-23,
                             0x1.3acdca423629dp-18,  -0x1.d86cf6abb3356p-17, 0x1.58bd07dc257d1p-18,
                             0x1.4a83efdf8634cp-14,  -0x1.067178b8750fcp-12, 0x1.11552532f3ef0p-12,
                             0x1.1c610bc9d91f2p-11,  -0x1.6ecdbf9523312p-9,  0x1.90e8128400f5cp-8,
                             -0x1.1a89b97bc347bp-7,  0x1.119da0c46ca97p-7,   -0x1.64e3dcd3c6fb8p-8,
                             0x1.1d83170fbf70ap-9,   0x1.ffcaa8f4c9befp-1};
  const double h = x - 2.5;
  double q = kErf[0];
#pragma GCC unroll 25
  for (int k = 1; k < 26; ++k) q = __builtin_fma(q, h, kErf[k]);
  return q;
}
inline double erf_fast(double x) {
  const double small = erf_small(x), large = erf_large(x);
  // Non-negative numbers compare as their bits do.
  const uint64_t below_one = as_u64(x) < as_u64(1.0) ? ~uint64_t{0} : 0;
  return as_double((as_u64(small) & below_one) | (as_u64(large) & ~below_one));
}

// Ziv's test: rounds fast(x[i]) to binary32 where its relative error bound `error` decides the
// rounding; elsewhere y[i] is slow(x[i]).
template <typename Fast>
inline void ziv(const float* x, float* y, int64_t n, double error, Fast&& fast,
                float (*slow)(float)) {
  float low[kElementaryChunk], high[kElementaryChunk];
  uint32_t differ = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = fast(static_cast<double>(x[i]));
    low[i] = narrowed(__builtin_fma(v, -error, v));
    high[i] = narrowed(__builtin_fma(v, error, v));
    differ |= as_u32(low[i]) ^ as_u32(high[i]);
  }
  if (differ != 0) {
    for (int64_t i = 0; i < n; ++i) {
      if (as_u32(low[i]) != as_u32(high[i])) low[i] = slow(x[i]);
    }
  }
  for (int64_t i = 0; i < n; ++i) y[i] = low[i];
}

void exp_vectors(const float* x, float* y, int64_t n) {
  float clamped[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) {
    // Beyond -110 and 100 the result rounds to 0 and to infinity.
    const float lowest = x[i] < -110.0f ? -110.0f : x[i];
    clamped[i] = lowest > 100.0f ? 100.0f : lowest;
    clamped[i] = clamped[i] != clamped[i] ? 0.0f : clamped[i];
  }
  ziv(clamped, result, n, 0x1p-49, exp_fast, exp_slow);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] != x[i] ? as_float(kNaN32) : result[i];
}

void log_vectors(const float* x, float* y, int64_t n) {
  float proper[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) proper[i] = x[i] > 0.0f && x[i] < kInfinity32 ? x[i] : 1.0f;
  ziv(proper, result, n, 0x1p-48, log_fast, log_slow);
  for (int64_t i = 0; i < n; ++i) {
    float r = x[i] > 0.0f ? result[i] : as_float(kNaN32);
    r = x[i] == 0.0f ? -kInfinity32 : r;
    y[i] = x[i] == kInfinity32 ? kInfinity32 : r;
  }
}

void tanh_vectors(const float* x, float* y, int64_t n) {
  float magnitude[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) {
    const float a = as_float(as_u32(x[i]) & 0x7FFFFFFFu);
    magnitude[i] = a < 10.0f ? a : 10.0f;  // tanh rounds to 1 beyond
  }
  ziv(magnitude, result, n, 0x1p-48, tanh_fast, tanh_slow);
  for (int64_t i = 0; i < n; ++i) {
    const float r = as_float(as_u32(result[i]) | (as_u32(x[i]) & 0x80000000u));
    y[i] = x[i] != x[i] ? as_float(kNaN32) : r;
  }
}

void erf_vectors(const float* x, float* y, int64_t n) {
  float magnitude[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) {
    const float a = as_float(as_u32(x[i]) & 0x7FFFFFFFu);
    magnitude[i] = a < 4.0f ? a : 4.0f;  // erf rounds to 1 from 4 on
  }
  ziv(magnitude, result, n, 0x1p-48, erf_fast, erf_slow);
  for (int64_t i = 0; i < n; ++i) {
    const float r = as_float(as_u32(result[i]) | (as_u32(x[i]) & 0x80000000u));
    y[i] = x[i] != x[i] ? as_float(kNaN32) : r;
  }
}

void log1p_vectors(const float* x, float* y, int64_t n) {
  float proper[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) proper[i] = x[i] > -1.0f && x[i] < kInfinity32 ? x[i] : 1.0f;
  ziv(proper, result, n, 0x1p-48, log1p_fast, log1p_slow);
  for (int64_t i = 0; i < n; ++i) {
    // The result has the sign of x, also where it is zero.
    const float signed_result =
        as_float((as_u32(result[i]) & 0x7FFFFFFFu) | (as_u32(x[i]) & 0x80000000u));
    float r = x[i] > -1.0f ? signed_result : as_float(kNaN32);
    r = x[i] == -1.0f ? -kInfinity32 : r;
    y[i] = x[i] == kInfinity32 ? kInfinity32 : r;
  }
}

constexpr ElementaryKernels kVectors = {exp_vectors,   log_vectors, tanh_vectors, erf_vectors,
                                        log1p_vectors, sin_array,   cos_array};

}  // namespace
}  // namespace twinrun
