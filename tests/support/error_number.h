// A number that carries a bound of its rounding error: a value in binary64, and a bound on
// |computed - value| if each operation rounds once to nearest with unit roundoff 2^-Bits (running
// error analysis: Higham, Accuracy and Stability of Numerical Algorithms, 3.3). A formula written
// with it yields its own rounding bound; tests compare engines with such formulas.
//
//   Num<24> a = 0.1f, b = 3;             // exact operands
//   Num<24> c = sqrt(a) / b;             // binary32 computes c.value within c.error
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace twinrun {

template <int Bits>
struct Num {
  double value = 0, error = 0;

  Num() = default;
  Num(double exact) : value(exact) {}  // NOLINT: formulas read as they are written
  // The result of an operation: the error inherited from its operands, plus one rounding. kTiny
  // bounds the absolute error of a rounding in gradual underflow.
  static Num rounded(double value, double inherited) {
    constexpr double kUnit = 1.0 / static_cast<double>(int64_t{1} << Bits);
    constexpr double kTiny = Bits == 24 ? 0x1p-150 : 0x1p-1074;
    Num result(value);
    result.error = inherited + kUnit * (std::abs(value) + inherited) + kTiny;
    return result;
  }

  friend Num operator+(Num a, Num b) { return rounded(a.value + b.value, a.error + b.error); }
  friend Num operator-(Num a, Num b) { return rounded(a.value - b.value, a.error + b.error); }
  friend Num operator*(Num a, Num b) {
    return rounded(a.value * b.value,
                   std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error);
  }
  // |a'/b' - a/b| <= (|a| eb + |b| ea) / (|b| (|b| - eb))
  friend Num operator/(Num a, Num b) {
    const double size = std::abs(b.value);
    return rounded(a.value / b.value,
                   (std::abs(a.value) * b.error + size * a.error) / (size * (size - b.error)));
  }
  friend Num sqrt(Num a) {
    return rounded(std::sqrt(a.value),
                   std::sqrt(a.value + a.error) - std::sqrt(std::max(0.0, a.value - a.error)));
  }
  friend Num exp(Num a) {
    return rounded(std::exp(a.value), std::exp(a.value) * std::expm1(a.error));
  }
  friend Num log(Num a) { return rounded(std::log(a.value), a.error / (a.value - a.error)); }
  // If the error intervals do not overlap, the larger operand is the result; else it may be either.
  friend Num max(Num a, Num b) {
    if (a.value < b.value) std::swap(a, b);
    if (a.value - a.error <= b.value + b.error) a.error = std::max(a.error, b.error);
    return a;
  }
  friend Num min(Num a, Num b) { return -max(-a, -b); }
  friend Num abs(Num a) { return a.value < 0 ? -a : a; }
  friend Num operator-(Num a) {
    a.value = -a.value;
    return a;
  }
};

// A sum in any order: n - 1 roundings of partial sums, each at most the sum of absolute values.
template <int Bits>
Num<Bits> sum(const std::vector<Num<Bits>>& terms) {
  Num<Bits> result;
  double sizes = 0;
  for (const Num<Bits>& t : terms) {
    result.value += t.value;
    result.error += t.error;
    sizes += std::abs(t.value) + t.error;
  }
  const double n = static_cast<double>(terms.size()), unit = std::ldexp(1.0, -Bits);
  result.error += sizes * n * unit / (1 - n * unit);
  return result;
}

}  // namespace twinrun
