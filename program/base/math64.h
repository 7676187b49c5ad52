// Functions in binary64 whose bits are defined: no libm, only + - * / sqrt, exponent bits, and series
// in the order written, so that initial weights and learning rates are the same under every C library.
// docs/numerics.md has the formulas and the errors; tests/base/math64_test.cc holds them to MPFR.
//
//   math64::exp2(0.5 * math64::log2(0.96));   // 0.96^0.5
//   math64::cos_pi(0.25);                     // cos(pi / 4)
//   math64::normal_quantile(0.975);           // 1.959963984540054
#pragma once

namespace twinrun::math64 {

// Relative error below 2^-50; 0: -infinity, below 0: NaN.
double log2(double x);
double log(double x);
// 2^x: relative error below 2^-50 where the result is normal; 0 below -1100, infinity above 1100.
double exp2(double x);
// base^power for base >= 0: 1 where power is 0, base where it is 1, else exp2(power log2(base)); 0 at
// base 0 with power > 0.
double power(double base, double exponent);
// cos(pi x) for x in [0, 1], exact at 0, 1/2 and 1: relative error below 2^-50; NaN elsewhere.
double cos_pi(double x);
// The z with Phi(z) = p, Phi the distribution function of the standard normal law: relative error below
// 2^-49. +-infinity at 1 and 0, NaN outside [0, 1].
double normal_quantile(double p);

}  // namespace twinrun::math64
