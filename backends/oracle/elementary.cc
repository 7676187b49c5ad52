// Argument reduction and series for each function.
#include "backends/oracle/elementary.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace twinrun::oracle {
namespace {

// ln 2 = kLn2High + kLn2Low; the high part has 32 bits, so that its product with an exponent is
// exact.
constexpr double kLn2High = 0x1.62e42feep-1;
constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
constexpr double kLog2E = 0x1.71547652b82fep+0;

double power_of_two(int64_t exponent) {
  return std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
}

// (exp(r) - 1) / r for |r| <= 1/2: Taylor, 18 terms, remainder below 2^-70.
double expm1_over(double r) {
  double sum = 1;
  for (int n = 18; n >= 2; --n) sum = std::fma(sum, r / n, 1.0);
  return sum;
}

// log((1 + s) / (1 - s)) = 2 (s + s^3/3 + ...), |s| < 0.1716; next term below 2^-75 of it.
double log_ratio(double s) {
  const double s2 = s * s;
  double sum = 0;
  for (int n = 31; n >= 3; n -= 2) sum = s2 * (sum + 1.0 / n);
  return 2 * std::fma(s, sum, s);
}

}  // namespace

double exponential(double x) {
  if (x != x) return x;
  if (x > 700) return std::numeric_limits<double>::infinity();
  if (x < -700) return 0;
  const double scaled = x * kLog2E;
  const auto k = static_cast<int64_t>(scaled < 0 ? scaled - 0.5 : scaled + 0.5);
  const auto kd = static_cast<double>(k);
  const double r = std::fma(-kd, kLn2Low, std::fma(-kd, kLn2High, x));
  return std::fma(r, expm1_over(r), 1.0) * power_of_two(k);
}

double logarithm(double x) {
  if (x != x || x < 0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0) return -std::numeric_limits<double>::infinity();
  if (x > std::numeric_limits<double>::max()) return x;
  // x = m 2^e with m in [sqrt 1/2, sqrt 2); log m = log_ratio(s) for s = (m - 1) / (m + 1).
  const uint64_t bits = std::bit_cast<uint64_t>(x);  // a normal binary64 for every binary32
  int64_t e = static_cast<int64_t>(bits >> 52) - 1023;
  double m = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFFu) | 0x3FF0000000000000u);
  if (m >= 0x1.6a09e667f3bcdp+0) {
    m *= 0.5;
    ++e;
  }
  const double log_m = log_ratio((m - 1) / (m + 1));
  const auto ed = static_cast<double>(e);
  return std::fma(ed, kLn2High, std::fma(ed, kLn2Low, log_m));
}

double hyperbolic_tangent(double x) {
  if (x != x) return x;
  const double a = std::fabs(x);
  double t;
  if (a < 0.25) {
    const double expm1 = 2 * a * expm1_over(2 * a);
    t = expm1 / (expm1 + 2);
  } else if (a > 30) {
    t = 1;
  } else {
    t = 1 - 2 / (exponential(2 * a) + 1);
  }
  return std::copysign(t, x);
}

// 2 / sqrt(pi) exp(-x^2) (x + 2 x^3 / 3 + 4 x^5 / (3 5) + ...): positive terms only (Abramowitz and
// Stegun 7.1.6).
double error_function(double x) {
  if (x != x) return x;
  const double a = std::fabs(x);
  if (a > 6) return std::copysign(1.0, x);  // within 2^-55
  const double square = a * a, rest = std::fma(a, a, -square);
  double term = a, sum = a;
  for (int n = 1; term > sum * 0x1p-56; ++n) {
    term *= 2 * square / (2 * n + 1);
    sum += term;
  }
  const double bell = exponential(-square) * (1 - rest);
  return std::copysign(0x1.20dd750429b6dp+0 * bell * sum, x);
}

double logarithm_of_1_plus(double x) {
  return std::fabs(x) < 0.25 ? log_ratio(x / (2 + x)) : logarithm(1 + x);
}

}  // namespace twinrun::oracle
