// Functions in binary64 whose bits are defined: no libm, only + - * / sqrt, exponent bits, and
// series in the order written, so that initial weights and learning rates are the same under every
// C library. docs/method/numerics.md has the formulas and the errors; tests/base/math64_test.cc
// compares with MPFR.
//
//   math64::exp2(0.5 * math64::log2(0.96));   // 0.96^0.5
//   math64::cos_pi(0.25);                     // cos(pi / 4)
//   math64::normal_quantile(0.975);           // 1.959963984540054
#pragma once

namespace twinrun::math64 {

// Logarithms, relative error below 2^-50; -infinity at 0, NaN below 0.
double log2(double x);
double log(double x);
// 2^x: relative error below 2^-50 where the result is normal; 0 below -1100, infinity above 1100.
double exp2(double x);
// base^exponent for base >= 0: 1 where the exponent is 0, base where it is 1, else
// exp2(exponent * log2(base)), which is 0 for base 0 and exponent > 0.
double power(double base, double exponent);
// cos(pi x) for x in [0, 1], exact at 0, 1/2 and 1: relative error below 2^-50; NaN elsewhere.
double cos_pi(double x);
// The z with Phi(z) = p, where Phi is the cumulative distribution function of the standard normal
// distribution: relative error below 2^-49. +-infinity at 1 and 0, NaN outside [0, 1].
double normal_quantile(double p);

}  // namespace twinrun::math64
