// Vectors of four binary64 numbers for the screen: exp, log, tanh, erf and log1p with errors below
// 2^-30, and comparisons with a tolerance. It uses intrinsics because g++ does not vectorise loops
// with floating-point comparisons that might trap.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "backends/kernels/intrinsics.h"

namespace twinrun::screen {

struct D4 {
  __m256d v;
  D4(__m256d x) : v(x) {}                 // NOLINT: as wide as what it wraps
  D4(double x) : v(_mm256_set1_pd(x)) {}  // NOLINT: 2 * x
  static D4 of(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
  static D4 of(const double* x) { return _mm256_loadu_pd(x); }
  void store(double* x) const { _mm256_storeu_pd(x, v); }
};
inline D4 operator+(D4 a, D4 b) { return _mm256_add_pd(a.v, b.v); }
inline D4 operator-(D4 a, D4 b) { return _mm256_sub_pd(a.v, b.v); }
inline D4 operator*(D4 a, D4 b) { return _mm256_mul_pd(a.v, b.v); }
inline D4 operator/(D4 a, D4 b) { return _mm256_div_pd(a.v, b.v); }
inline D4 fma(D4 a, D4 b, D4 c) { return _mm256_fmadd_pd(a.v, b.v, c.v); }
inline D4 abs(D4 x) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), x.v); }
inline D4 clamped(D4 x, double low, double high) {
  return _mm256_min_pd(_mm256_max_pd(x.v, D4(low).v), D4(high).v);
}
// Sets all bits of a lane in which a <= b does not hold (which includes NaN).
inline D4 beyond(D4 a, D4 b) { return _mm256_cmp_pd(a.v, b.v, _CMP_NLE_UQ); }
inline D4 operator|(D4 a, D4 b) { return _mm256_or_pd(a.v, b.v); }
inline bool any(D4 lanes) { return _mm256_movemask_pd(lanes.v) != 0; }
inline double sum(D4 x) {
  const __m128d half = _mm_add_pd(_mm256_castpd256_pd128(x.v), _mm256_extractf128_pd(x.v, 1));
  return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}

struct Exp {
  D4 scale;   // 2^k
  D4 excess;  // exp(r) - 1
};
// exp(x) = scale (1 + excess) for |x| <= 200. |r| <= ln 2 / 2; the next term of the series is below
// 2^-35 of the excess.
inline Exp exponential(D4 x) {
  const D4 shifted = fma(x, 0x1.71547652b82fep+0, 0x1.8p52);
  const D4 r = fma(shifted - 0x1.8p52, -0x1.62e42fefa39efp-1, x);
  D4 p = 1.0 / 362880;
  for (double c : {1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0})
    p = fma(p, r, c);
  const __m256i exponent = _mm256_slli_epi64(_mm256_castpd_si256(shifted.v), 52);
  return {_mm256_castsi256_pd(_mm256_add_epi64(exponent, _mm256_set1_epi64x(0x3FF0000000000000))),
          r * p};
}
// Returns a number, not NaN, for a NaN.
inline D4 exp_of(D4 x) {
  const Exp e = exponential(clamped(x, -110, 100));
  return fma(e.scale, e.excess, e.scale);
}
inline D4 logistic_of(D4 x) { return D4(1) / (D4(1) + exp_of(D4(0) - x)); }
inline D4 tanh_of(D4 x) {
  const Exp e = exponential(D4(2) * clamped(abs(x), 0, 20));
  const D4 expm1 = fma(e.scale, e.excess, e.scale - 1);
  return (expm1 / (expm1 + 2)) | D4(_mm256_and_pd(_mm256_set1_pd(-0.0), x.v));
}
// For finite positive numbers. x = m 2^e with m in [sqrt 1/2, sqrt 2): 2 artanh((m - 1) / (m + 1))
// + e ln 2.
inline D4 log_of(D4 x) {
  const __m256i bits = _mm256_castpd_si256(x.v);
  const __m256i shifted =
      _mm256_sub_epi64(bits, _mm256_set1_epi64x(0x3FE6A09E667F3BCD));  // sqrt 1/2
  const __m256i exponent =
      _mm256_and_si256(shifted, _mm256_set1_epi64x(static_cast<int64_t>(0xFFF0000000000000u)));
  const D4 m = _mm256_castsi256_pd(_mm256_sub_epi64(bits, exponent));
  // Convert e to a number without a conversion instruction: e + 1024 as the last bits of 2^52.
  const __m256i biased =
      _mm256_srli_epi64(_mm256_add_epi64(shifted, _mm256_set1_epi64x(0x4000000000000000)), 52);
  const D4 e =
      D4(_mm256_castsi256_pd(_mm256_or_si256(biased, _mm256_set1_epi64x(0x4330000000000000)))) -
      (0x1p52 + 1024);
  const D4 s = (m - 1) / (m + 1), s2 = s * s;
  D4 p = 1.0 / 13;
  for (double c : {1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3, 1.0}) p = fma(p, s2, c);
  return fma(e, 0x1.62e42fefa39efp-1, D4(2) * s * p);
}

// mask ? a : b for each lane.
inline D4 blend(D4 mask, D4 a, D4 b) { return _mm256_blendv_pd(b.v, a.v, mask.v); }
// For finite numbers above -1. x log(u) / (u - 1), where u is the rounded 1 + x (Kahan): the
// rounding of u has almost no effect on the quotient.
inline D4 log1p_of(D4 x) {
  const D4 u = x + 1, gap = u - 1;
  const D4 none = _mm256_cmp_pd(gap.v, _mm256_setzero_pd(), _CMP_EQ_OQ);
  return blend(none, x, log_of(u) * x / blend(none, D4(1), gap));
}
// Up to |x| = 1 the power series (next term below 2^-33); from there to 4 a polynomial in |x| - 5/2
// through the Chebyshev points, with an error of 2^-32.8. Returns a number, not NaN, for a NaN.
inline D4 erf_of(D4 x) {
  const D4 a = clamped(abs(x), 0, 4), z = a * a, h = a - 2.5;
  D4 series = -1.0 / (39916800.0 * 23);
  for (double c : {1.0 / (3628800.0 * 21), -1.0 / (362880.0 * 19), 1.0 / (40320.0 * 17),
                   -1.0 / (5040.0 * 15), 1.0 / (720.0 * 13), -1.0 / (120.0 * 11), 1.0 / (24.0 * 9),
                   -1.0 / (6.0 * 7), 1.0 / (2.0 * 5), -1.0 / 3, 1.0})
    series = fma(series, z, c);
  D4 large = 3.3670660638e-08;
  for (double c :
       {1.0937593684e-08, -6.7323637916e-07, 7.9170270535e-07, 4.7301070639e-06, -1.5359386286e-05,
        5.1087980224e-06, 8.0415344321e-05, -0.00025027432879, 0.00025945266909, 0.0005424081647,
        -0.0027979684828, 0.0061173482407, -0.0086224879283, 0.0083500895643, -0.0054457011192,
        0.0021782842301, 0.99959304785})
    large = fma(large, h, c);
  const D4 below_one = _mm256_cmp_pd(a.v, D4(1).v, _CMP_LT_OQ);
  return blend(below_one, D4(1.1283791670955126) * a * series, large) |
         D4(_mm256_and_pd(_mm256_set1_pd(-0.0), x.v));
}

// value[i] = f(x[i]) for n numbers.
template <typename F>
void map(const float* x, double* value, int64_t n, F f) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) f(D4::of(x + i)).store(value + i);
  for (; i < n; ++i) value[i] = _mm256_cvtsd_f64(f(D4(static_cast<double>(x[i]))).v);
}

// Whether |x - value| <= radius for all elements. radius(i, v) gives the radii of elements i to i +
// 3, whose values are v; in the remainder, that of element i in all lanes.
template <typename R>
bool all_close(const float* x, const double* value, int64_t n, R radius) {
  D4 far = 0.0;
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    far = far | beyond(abs(D4::of(x + i) - D4::of(value + i)), radius(i, D4::of(value + i)));
  for (; i < n; ++i) {
    const D4 v = value[i];
    far = far | beyond(abs(D4(static_cast<double>(x[i])) - v), radius(i, v));
  }
  return !any(far);
}

}  // namespace twinrun::screen
