// exp, log, tanh, erf, log1p, sin and cos in binary64 without libm, so that no verdict depends on a C
// library. They use only +, -, *, /, fma and exponent bits. The relative error is below 2^-48 over
// the binary32 range (measured against MPFR in oracle_test.cc).
//
//   exponential(1.0)    // 2.718281828459045
#pragma once

namespace twinrun::oracle {

inline constexpr double kElementaryError = 0x1p-48;

double exponential(double x);  // infinity above 700, 0 below -700
double logarithm(double x);    // NaN below 0, -infinity at 0
double hyperbolic_tangent(double x);
double error_function(double x);
double logarithm_of_1_plus(double x);
// For |x| below 2^128; NaN for infinite x.
double sine(double x);
double cosine(double x);  // NaN below -1, -infinity at -1

}  // namespace twinrun::oracle
