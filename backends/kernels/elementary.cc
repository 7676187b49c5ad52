#include "backends/kernels/elementary.h"

#include <cmath>
#include <limits>

#include "backends/kernels/kernels.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

__extension__ typedef __float128 Quad;

// ln 2 in three binary64 terms: 0x0.b17217f7d1cf79abc9e3b39803f2f6af40f343267...
constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLn2b = 0x1.abc9e3b39803fp-56,
                 kLn2c = 0x1.7b57a079a1934p-111;
constexpr double kLog2e = 0x1.71547652b82fep+0;
constexpr double kRound = 0x1.8p52;  // adding it rounds to an integer, held in the low bits

inline double as_double(uint64_t u) { return std::bit_cast<double>(u); }
inline uint64_t as_u64(double x) { return std::bit_cast<uint64_t>(x); }

// exp(r) - 1 for |r| <= ln2/2: its Taylor series to r^13, cut off below 2^-57. Coefficients are
// exact quotients.
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

// Relative error at most 2^-50 (two reductions by fma, 2^-54 each; polynomial 2^-52).
inline double exp_fast(double x) {
  const double t = __builtin_fma(x, kLog2e, kRound);
  const double n = t - kRound;
  const double r = __builtin_fma(n, -kLn2b, __builtin_fma(n, -kLn2, x));
  const double scale = as_double((as_u64(t) + 1023) << 52);
  return (1.0 + expm1_reduced(r)) * scale;
}

// e log 2 + 2 s (1 + s^2/3 + ... + s^20/21): log of 2^e m, s = (m - 1) / (m + 1).
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
// m in [sqrt(1/2), sqrt(2)); x > 0 and finite.
inline double log_fast(double x) {
  const uint64_t u = as_u64(x) - 0x3FE6A09E667F3BCDull;  // distance from sqrt(1/2)
  const uint64_t shifted = u >> 52;                      // exponent, modulo 2^12
  const double e =
      as_double(((shifted ^ 0x800) & 0xFFF) | 0x4330000000000000ull) - (0x1p52 + 0x800);
  const double m = as_double((u & 0x000FFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull);
  return log_of((m - 1.0) / (m + 1.0), e);
}

// x >= 0: expm1(2x) / (expm1(2x) + 2).
inline double tanh_fast(double x) {
  const double z = x + x;
  const double t = __builtin_fma(z, kLog2e, kRound);
  const double n = t - kRound;
  const double r = __builtin_fma(n, -kLn2b, __builtin_fma(n, -kLn2, z));
  const double scale = as_double((as_u64(t) + 1023) << 52);
  const double em = __builtin_fma(scale, expm1_reduced(r), scale - 1.0);
  return em / (em + 2.0);
}

// log(1 + x), x > -1 and finite: as log_fast of u = 1 + x, but where u lies in [sqrt(1/2), sqrt(2))
// it is x that is taken for m - 1, exact where u is not. Elsewhere u is exact up to x = 2^29, and its
// relative error of 2^-53 beyond that is nothing to a logarithm above 20.
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

// 2 / sqrt(pi) in three terms.
constexpr double kTwoOverSqrtPi = 0x1.20dd750429b6dp+0, kTwoOverSqrtPib = 0x1.1ae3a914fed80p-56,
                 kTwoOverSqrtPic = -0x1.3cbbebf65f145p-111;

// 0 <= x <= 1: 2 / sqrt(pi) * x * sum (-x^2)^n / (n! (2n + 1)). Cut off below 2^-57 of the first
// term, which the sum is at least 0.74 of; terms add up to twice the sum: relative error at most
// 2^-50.
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
// 1 <= x <= 4: the polynomial of degree 25 in x - 5/2 (exact) that equals erf at the Chebyshev points;
// it is off by at most 2^-50.5, coefficients rounded, and Horner's rule adds 2^-52.3. erf >= 0.84.
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
  // Positive numbers compare as their bits do.
  const uint64_t below_one = as_u64(x) < as_u64(1.0) ? ~uint64_t{0} : 0;
  return as_double((as_u64(small) & below_one) | (as_u64(large) & ~below_one));
}

// ---- binary128, for the few values that binary64 does not decide ----

Quad ln2_quad() { return Quad(kLn2) + Quad(kLn2b) + Quad(kLn2c); }

// exp(r) - 1 by its series, |r| <= 0.35: 2^-110.
Quad expm1_quad_reduced(Quad r) {
  Quad sum = 0;
  for (int k = 30; k >= 1; --k) sum = (sum + 1) * r / k;
  return sum;
}
Quad two_to(int n) { return Quad(as_double(static_cast<uint64_t>(n + 1023) << 52)); }

Quad exp_quad(float x) {
  const int n = static_cast<int>(std::nearbyint(x * kLog2e));
  return (1 + expm1_quad_reduced(Quad(x) - n * ln2_quad())) * two_to(n);
}
Quad log_quad_of(Quad s, int e) {
  const Quad z = s * s;
  Quad q = 0;
  for (int k = 51; k >= 1; k -= 2) q = q * z + Quad(1) / k;
  return e * ln2_quad() + 2 * s * q;
}
Quad log_quad(float x) {
  int e;
  double m = std::frexp(static_cast<double>(x), &e);
  if (m < 0x1.6a09e667f3bcdp-1) m *= 2, --e;
  return log_quad_of((Quad(m) - 1) / (Quad(m) + 1), e);
}
Quad log1p_quad(float x) {
  const Quad one_plus = 1 + Quad(x);
  int e;
  const double near = std::frexp(static_cast<double>(one_plus), &e);
  if (near < 0x1.6a09e667f3bcdp-1) --e;
  const Quad f = e == 0 ? Quad(x) : one_plus * two_to(-e) - 1;
  return log_quad_of(f / (f + 2), e);
}
// The series of erf_small; its terms reach e^(x^2) / x, which costs 23 of the 113 bits at x = 4.
Quad erf_quad(float x) {
  const Quad z = Quad(x) * x;
  Quad term = x, sum = x;
  for (int n = 1; n <= 100; ++n) {
    term *= -z / n;
    sum += term / (2 * n + 1);
  }
  return (Quad(kTwoOverSqrtPi) + Quad(kTwoOverSqrtPib) + Quad(kTwoOverSqrtPic)) * sum;
}
Quad tanh_quad(float x) {
  const double z = 2.0 * x;
  const int n = static_cast<int>(std::nearbyint(z * kLog2e));
  const Quad em = two_to(n) * expm1_quad_reduced(Quad(z) - n * ln2_quad()) + (two_to(n) - 1);
  return em / (em + 2);
}

// Rounds to binary32; the conversion of the rounded value is where the hardware flushes, if it is
// to.
float rounded(Quad y) {
  volatile double r = static_cast<float>(y);
  return static_cast<float>(r);
}

// value(i), its error bound, and slow(i) where they do not agree on a rounding.
template <typename Fast, typename Slow>
inline void ziv(const float* x, float* y, int64_t n, double error, Fast&& fast, Slow&& slow) {
  float low[kElementaryChunk], high[kElementaryChunk];
  uint32_t differ = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double v = fast(static_cast<double>(x[i]));
    low[i] = static_cast<float>(__builtin_fma(v, -error, v));
    high[i] = static_cast<float>(__builtin_fma(v, error, v));
    differ |= to_bits(low[i]) ^ to_bits(high[i]);
  }
  if (differ != 0) {
    for (int64_t i = 0; i < n; ++i) {
      if (to_bits(low[i]) != to_bits(high[i])) low[i] = slow(x[i]);
    }
  }
  for (int64_t i = 0; i < n; ++i) y[i] = low[i];
}

}  // namespace

void exp_array(const float* x, float* y, int64_t n) {
  float clamped[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) {
    const float lowest =
        x[i] < -110.0f ? -110.0f : x[i];  // rounds to 0 and to infinity beyond these
    clamped[i] = lowest > 100.0f ? 100.0f : lowest;
    clamped[i] = clamped[i] != clamped[i] ? 0.0f : clamped[i];
  }
  ziv(clamped, result, n, 0x1p-49, exp_fast, [](float v) { return rounded(exp_quad(v)); });
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] != x[i] ? from_bits(kCanonicalNaN) : result[i];
}

void log_array(const float* x, float* y, int64_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float proper[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) proper[i] = x[i] > 0.0f && x[i] < kInfinity ? x[i] : 1.0f;
  ziv(proper, result, n, 0x1p-48, log_fast, [](float v) { return rounded(log_quad(v)); });
  for (int64_t i = 0; i < n; ++i) {
    float r = x[i] > 0.0f ? result[i] : from_bits(kCanonicalNaN);
    r = x[i] == 0.0f ? -kInfinity : r;
    y[i] = x[i] == kInfinity ? kInfinity : r;
  }
}

void tanh_array(const float* x, float* y, int64_t n) {
  float magnitude[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) {
    const float a = from_bits(to_bits(x[i]) & 0x7FFFFFFFu);
    magnitude[i] = a < 10.0f ? a : 10.0f;  // rounds to 1 beyond
  }
  ziv(magnitude, result, n, 0x1p-48, tanh_fast, [](float v) { return rounded(tanh_quad(v)); });
  for (int64_t i = 0; i < n; ++i) {
    const float r = from_bits(to_bits(result[i]) | (to_bits(x[i]) & 0x80000000u));
    y[i] = x[i] != x[i] ? from_bits(kCanonicalNaN) : r;
  }
}

void erf_array(const float* x, float* y, int64_t n) {
  float magnitude[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) {
    const float a = from_bits(to_bits(x[i]) & 0x7FFFFFFFu);
    magnitude[i] = a < 4.0f ? a : 4.0f;  // rounds to 1 from there
  }
  ziv(magnitude, result, n, 0x1p-48, erf_fast, [](float v) { return rounded(erf_quad(v)); });
  for (int64_t i = 0; i < n; ++i) {
    const float r = from_bits(to_bits(result[i]) | (to_bits(x[i]) & 0x80000000u));
    y[i] = x[i] != x[i] ? from_bits(kCanonicalNaN) : r;
  }
}

void log1p_array(const float* x, float* y, int64_t n) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  float proper[kElementaryChunk], result[kElementaryChunk];
  for (int64_t i = 0; i < n; ++i) proper[i] = x[i] > -1.0f && x[i] < kInfinity ? x[i] : 1.0f;
  ziv(proper, result, n, 0x1p-48, log1p_fast, [](float v) { return rounded(log1p_quad(v)); });
  for (int64_t i = 0; i < n; ++i) {
    // It has the sign of x, zeros too.
    const float signed_result =
        from_bits((to_bits(result[i]) & 0x7FFFFFFFu) | (to_bits(x[i]) & 0x80000000u));
    float r = x[i] > -1.0f ? signed_result : from_bits(kCanonicalNaN);
    r = x[i] == -1.0f ? -kInfinity : r;
    y[i] = x[i] == kInfinity ? kInfinity : r;
  }
}

double exp_unrounded(float x) { return exp_fast(static_cast<double>(x)); }
double log_unrounded(float x) { return log_fast(static_cast<double>(x)); }
double tanh_unrounded(float x) {
  return std::copysign(tanh_fast(std::fabs(static_cast<double>(x))), static_cast<double>(x));
}
double erf_unrounded(float x) {
  return std::copysign(erf_fast(std::fabs(static_cast<double>(x))), static_cast<double>(x));
}
double log1p_unrounded(float x) { return log1p_fast(static_cast<double>(x)); }

float exp_f32(float x) {
  exp_array(&x, &x, 1);
  return x;
}
float log_f32(float x) {
  log_array(&x, &x, 1);
  return x;
}
float tanh_f32(float x) {
  tanh_array(&x, &x, 1);
  return x;
}
float erf_f32(float x) {
  erf_array(&x, &x, 1);
  return x;
}
float log1p_f32(float x) {
  log1p_array(&x, &x, 1);
  return x;
}

}  // namespace twinrun
