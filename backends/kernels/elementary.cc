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

// m in [sqrt(1/2), sqrt(2)), s = (m - 1) / (m + 1), log m = 2 s (1 + s^2/3 + ... + s^20/21); x > 0
// and finite.
inline double log_fast(double x) {
  const uint64_t u = as_u64(x) - 0x3FE6A09E667F3BCDull;  // distance from sqrt(1/2)
  const uint64_t shifted = u >> 52;                      // exponent, modulo 2^12
  const double e =
      as_double(((shifted ^ 0x800) & 0xFFF) | 0x4330000000000000ull) - (0x1p52 + 0x800);
  const double m = as_double((u & 0x000FFFFFFFFFFFFFull) + 0x3FE6A09E667F3BCDull);
  const double s = (m - 1.0) / (m + 1.0), z = s * s;
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
Quad log_quad(float x) {
  int e;
  double m = std::frexp(static_cast<double>(x), &e);
  if (m < 0x1.6a09e667f3bcdp-1) m *= 2, --e;
  const Quad s = (Quad(m) - 1) / (Quad(m) + 1), z = s * s;
  Quad q = 0;
  for (int k = 51; k >= 1; k -= 2) q = q * z + Quad(1) / k;
  return e * ln2_quad() + 2 * s * q;
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

}  // namespace twinrun
