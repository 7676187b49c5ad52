// The elementary functions: choice of the vector code, and the evaluation in binary128.
#include "backends/kernels/elementary.h"

#include <cmath>

#include "backends/kernels/elementary_vectors.h"
#include "backends/kernels/kernels.h"

namespace twinrun {
namespace {

// Further binary64 terms of ln 2 and of 2 / sqrt(pi).
constexpr double kLn2c = 0x1.7b57a079a1934p-111;
constexpr double kTwoOverSqrtPib = 0x1.1ae3a914fed80p-56, kTwoOverSqrtPic = -0x1.3cbbebf65f145p-111;

const ElementaryKernels& vectors() {
  return elementary_kernels(vectors_of_512() ? Isa::kAvx512 : Isa::kAvx2);
}

// ---- binary128, for the few values that binary64 does not decide ----

Quad ln2_quad() { return Quad(kLn2) + Quad(kLn2b) + Quad(kLn2c); }

// exp(r) - 1 by its series for |r| <= 0.35, to 2^-110.
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
// The series of erf_small. Its terms reach e^(x^2) / x, and their cancellation costs 23 of the 113
// bits at x = 4.
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

// Rounds to binary32. Converting the rounded value through binary64 lets the hardware flush it, if
// it is set to flush.
float rounded(Quad y) {
  volatile double r = static_cast<float>(y);
  return narrowed(r);
}

}  // namespace

const ElementaryKernels& elementary_kernels(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kElementaryAvx512;
#else
  (void)isa;
#endif
  return kVectors;
}

float exp_slow(float x) { return rounded(exp_quad(x)); }
float log_slow(float x) { return rounded(log_quad(x)); }
float tanh_slow(float x) { return rounded(tanh_quad(x)); }
float erf_slow(float x) { return rounded(erf_quad(x)); }
float log1p_slow(float x) { return rounded(log1p_quad(x)); }

void exp_array(const float* x, float* y, int64_t n) { vectors().exp(x, y, n); }
void log_array(const float* x, float* y, int64_t n) { vectors().log(x, y, n); }
void tanh_array(const float* x, float* y, int64_t n) { vectors().tanh(x, y, n); }
void erf_array(const float* x, float* y, int64_t n) { vectors().erf(x, y, n); }
void log1p_array(const float* x, float* y, int64_t n) { vectors().log1p(x, y, n); }

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
