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

// |x| modulo pi / 2, bit by bit in fixed point: the bits of the integer part by doubling, then the
// fraction. 252 bits lie behind the point, and each doubling doubles the error of pi / 2, so that
// 2^-124 is left of it for |x| below 2^128. No binary32 number that is not 0 is closer than 2^-31 to
// a multiple of pi / 2.
class Remainder {
 public:
  explicit Remainder(double x) {
    int exponent;
    const double fraction = std::frexp(x, &exponent);  // x >= 1/2
    const auto mantissa = static_cast<uint64_t>(std::ldexp(fraction, 53));
    for (int i = 0; i < exponent; ++i) {
      for (int w = 0; w < 4; ++w) words_[w] = words_[w] << 1 | (w < 3 ? words_[w + 1] >> 63 : 0);
      if (i < 53 && (mantissa >> (52 - i) & 1) != 0) words_[0] += uint64_t{1} << 60;
      quadrant_ *= 2;
      reduce();
    }
    if (exponent < 53) {  // the fraction, of at most 53 bits, behind the point of words_[0]
      const uint64_t rest = mantissa << (exponent + 11);  // its first bit is 1/2
      const uint64_t low = words_[1];
      words_[1] += rest << 60;
      words_[0] += (rest >> 4) + (words_[1] < low ? 1 : 0);
      reduce();
    }
    if (at_least(words_, kQuarter)) subtract(), ++quadrant_, negative_ = true;
  }
  // The multiple of pi / 2 that is nearest to x, and x minus it.
  unsigned quadrant() const { return quadrant_; }
  double radians() const {
    uint64_t w[4] = {words_[0], words_[1], words_[2], words_[3]};
    if (negative_) {  // two's complement
      bool carry = true;
      for (int i = 3; i >= 0; --i) {
        w[i] = ~w[i] + (carry ? 1 : 0);
        carry = carry && w[i] == 0;
      }
    }
    double sum = 0;
    for (int i = 3; i >= 0; --i) sum += std::ldexp(static_cast<double>(w[i]), -60 - 64 * i);
    return negative_ ? -sum : sum;
  }

 private:
  static constexpr uint64_t kHalf[4] = {0x1921fb54442d1846u, 0x9898cc51701b839au,
                                        0x252049c1114cf98eu, 0x804177d4c7627364u};  // pi / 2
  static constexpr uint64_t kQuarter[4] = {0x0c90fdaa22168c23u, 0x4c4c6628b80dc1cdu,
                                           0x129024e088a67cc7u, 0x4020bbea63b139b2u};
  static bool at_least(const uint64_t* a, const uint64_t* b) {
    for (int w = 0; w < 4; ++w) {
      if (a[w] != b[w]) return a[w] > b[w];
    }
    return true;
  }
  void subtract() {
    bool borrow = false;
    for (int w = 3; w >= 0; --w) {
      const uint64_t before = words_[w];
      words_[w] = before - kHalf[w] - (borrow ? 1 : 0);
      borrow = before < kHalf[w] || (borrow && before == kHalf[w]);
    }
  }
  void reduce() {
    while (at_least(words_, kHalf)) subtract(), ++quadrant_;
  }

  uint64_t words_[4] = {};
  unsigned quadrant_ = 0;
  bool negative_ = false;
};

// sin(x + quarters pi / 2), by the Taylor series around the nearest multiple of pi / 2; terms are
// added from the smallest.
double shifted_sine(double x, unsigned quarters) {
  if (!(std::fabs(x) <= std::numeric_limits<double>::max()))
    return std::numeric_limits<double>::quiet_NaN();
  unsigned quadrant = quarters;
  double r = x;
  if (std::fabs(x) > 0.5) {
    const Remainder rest(std::fabs(x));
    quadrant = x < 0 ? quarters - rest.quadrant() : quarters + rest.quadrant();
    r = x < 0 ? -rest.radians() : rest.radians();
  }
  const double square = r * r;
  double sum = 0;
  if ((quadrant & 1u) != 0) {
    for (int n = 20; n >= 2; n -= 2) sum = -square / (n * (n - 1)) * (1 + sum);
    sum = 1 + sum;
  } else {
    for (int n = 21; n >= 3; n -= 2) sum = -square / (n * (n - 1)) * (1 + sum);
    sum = r + r * sum;
  }
  return (quadrant & 2u) != 0 ? -sum : sum;
}

}  // namespace

double sine(double x) { return x == 0 ? x : shifted_sine(x, 0); }
double cosine(double x) { return shifted_sine(x, 1); }

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
