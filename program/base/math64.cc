// log, exp2, power, cos and the normal quantile from + - * / sqrt alone, with defined bits.
#include "program/base/math64.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace twinrun::math64 {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLn2High = 0x1.62e42feep-1;  // 32 bits: its product with an exponent is exact
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kPi = 3.141592653589793;

struct Parts {
  int exponent = 0;
  double log = 0;  // natural logarithm of the fraction
};
// x = 2^exponent * fraction, 0.75 <= fraction < 1.5;
// ln fraction = 2 atanh t, t = (fraction - 1) / (fraction + 1).
Parts split(double x) {
  Parts p;
  while (x >= 1.5) {
    x *= 0.5;
    ++p.exponent;
  }
  while (x < 0.75) {
    x *= 2.0;
    --p.exponent;
  }
  const double t = (x - 1.0) / (x + 1.0), t2 = t * t;
  double sum = 0;
  for (int k = 33; k >= 1; k -= 2) sum = sum * t2 + 1.0 / k;
  p.log = 2.0 * t * sum;
  return p;
}

// The value of a logarithm where x is not in (0, infinity).
double outside(double x) { return x == 0 ? -kInfinity : x > 0 ? x : kNaN; }

// sin x and cos x for 0 <= x <= pi / 4: Taylor series; the first omitted terms are below 2^-60.
double sin_series(double x) {
  const double z = x * x;
  double sum = 1;
  for (int k = 18; k >= 2; k -= 2) sum = 1.0 - sum * z / (k * (k + 1));
  return x * sum;
}
double cos_series(double x) {
  const double z = x * x;
  double sum = 1;
  for (int k = 17; k >= 1; k -= 2) sum = 1.0 - sum * z / (k * (k + 1));
  return sum;
}

// Horner, highest coefficient first.
template <int kSize>
double polynomial(const double (&c)[kSize], double x) {
  double sum = c[0];
  for (int k = 1; k < kSize; ++k) sum = sum * x + c[k];
  return sum;
}

// PPND16 of Wichura, "Algorithm AS 241: The Percentage Points of the Normal Distribution", Applied
// Statistics 37 (1988): numerators and denominators (k...Below) for |p - 1/2| <= 0.425, for
// sqrt(-log p) <= 5, and beyond.
constexpr double kCentre[] = {2.5090809287301226727e3, 3.3430575583588128105e4,
                              6.7265770927008700853e4, 4.5921953931549871457e4,
                              1.3731693765509461125e4, 1.9715909503065514427e3,
                              1.3314166789178437745e2, 3.3871328727963666080e0};
constexpr double kCentreBelow[] = {5.2264952788528545610e3, 2.8729085735721942674e4,
                                   3.9307895800092710610e4, 2.1213794301586595867e4,
                                   5.3941960214247511077e3, 6.8718700749205790830e2,
                                   4.2313330701600911252e1, 1.0};
constexpr double kTail[] = {7.74545014278341407640e-4, 2.27238449892691845833e-2,
                            2.41780725177450611770e-1, 1.27045825245236838258e0,
                            3.64784832476320460504e0,  5.76949722146069140550e0,
                            4.63033784615654529590e0,  1.42343711074968357734e0};
constexpr double kTailBelow[] = {1.05075007164441684324e-9, 5.47593808499534494600e-4,
                                 1.51986665636164571966e-2, 1.48103976427480074590e-1,
                                 6.89767334985100004550e-1, 1.67638483018380384940e0,
                                 2.05319162663775882187e0,  1.0};
constexpr double kFar[] = {2.01033439929228813265e-7, 2.71155556874348757815e-5,
                           1.24266094738807843860e-3, 2.65321895265761230930e-2,
                           2.96560571828504891230e-1, 1.78482653991729133580e0,
                           5.46378491116411436990e0,  6.65790464350110377720e0};
constexpr double kFarBelow[] = {2.04426310338993978564e-15, 1.42151175831644588870e-7,
                                1.84631831751005468180e-5,  7.86869131145613259100e-4,
                                1.48753612908506148525e-2,  1.36929880922735805310e-1,
                                5.99832206555887937690e-1,  1.0};

}  // namespace

double log2(double x) {
  if (!(x > 0 && x < kInfinity)) return outside(x);
  const Parts p = split(x);
  return p.exponent + p.log * 1.4426950408889634;
}

double log(double x) {
  if (!(x > 0 && x < kInfinity)) return outside(x);
  const Parts p = split(x);
  return p.exponent * kLn2High + (p.exponent * kLn2Low + p.log);
}

double exp2(double x) {
  if (x != x) return x;
  if (x > 1100) return kInfinity;
  if (x < -1100) return 0;
  int exponent = static_cast<int>(x);
  if (exponent > x) --exponent;
  const double r = (x - exponent) * 0.6931471805599453;
  double sum = 1;
  for (int k = 20; k >= 1; --k) sum = 1.0 + sum * r / k;
  for (; exponent > 0; --exponent) sum *= 2.0;
  for (; exponent < 0; ++exponent) sum *= 0.5;
  return sum;
}

double power(double base, double exponent) {
  if (exponent == 0) return 1;
  if (exponent == 1) return base;
  return exp2(exponent * log2(base));
}

double cos_pi(double x) {
  if (!(x >= 0 && x <= 1)) return kNaN;
  if (x <= 0.25) return cos_series(x * kPi);
  if (x < 0.75) return x <= 0.5 ? sin_series((0.5 - x) * kPi) : -sin_series((x - 0.5) * kPi);
  return -cos_series((1 - x) * kPi);
}

double normal_quantile(double p) {
  if (!(p > 0 && p < 1)) return p == 0 ? -kInfinity : p == 1 ? kInfinity : kNaN;
  const double q = p - 0.5;
  if (std::fabs(q) <= 0.425) {
    const double r = 0.180625 - q * q;
    return q * polynomial(kCentre, r) / polynomial(kCentreBelow, r);
  }
  const double r = std::sqrt(-log(q < 0 ? p : 1 - p));
  const double z = r <= 5 ? polynomial(kTail, r - 1.6) / polynomial(kTailBelow, r - 1.6)
                          : polynomial(kFar, r - 5) / polynomial(kFarBelow, r - 5);
  return q < 0 ? -z : z;
}

}  // namespace twinrun::math64
