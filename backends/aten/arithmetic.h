// Running error analysis: every number is computed in binary64 together with a bound on how far a
// conforming kernel's number may be from it. The definitions of this folder are written with these
// operations; docs/method/calls.md has the derivations.
//
//   const Arithmetic m;                                   // a kernel that computes in binary32
//   const Estimate y = m.mul(x, m.add({1.0}, m.exp(x)));  // its value, and its radius
#pragma once

#include <cmath>
#include <cstdint>

#include "backends/aten/call.h"
#include "backends/oracle/elementary.h"
#include "backends/oracle/rounding.h"
#include "program/base/thread_pool.h"

namespace twinrun::aten {

using oracle::Estimate;
using oracle::finite;
using oracle::Format;
using oracle::kInfinity;

// Integers are computed with in binary32.
constexpr const Format& format_of(Element e) {
  return e == Element::kF64    ? oracle::kBinary64
         : e == Element::kBF16 ? oracle::kBfloat16
         : e == Element::kF16  ? oracle::kBinary16
                               : oracle::kBinary32;
}
// One rounding to bfloat16 or binary16, relative; 0 for other types.
inline double half_unit(Element e) { return is_half(e) ? format_of(e).unit() : 0; }

inline Estimate exactly(double x) { return {x, 0}; }

// Whether all terms of a sum are equal, besides zeros.
class Equal {
 public:
  void add(double x) {
    if (x == 0) return;
    if (first_ == 0) first_ = x;
    equal_ = equal_ && x == first_;
  }
  explicit operator bool() const { return equal_; }

 private:
  double first_ = 0;
  bool equal_ = true;
};

// The arithmetic in which a kernel computes, before it stores its result: binary32 for results of
// binary32, bfloat16 and binary16; binary64 for those of binary64.
struct Arithmetic {
  double unit = oracle::kUnit;           // relative error of one rounding
  double smallest = oracle::kMinNormal;  // results below it may be denormal, or flushed to zero
  double overflow = oracle::kBinary32.overflow;
  // Largest error of exp, log, tanh, ... in units of `unit`. Sleef's functions, which PyTorch uses,
  // promise 1 ulp (2 units); MKL's enhanced performance and fast approximations 4 ulps.
  double elementary = 8;
  // exp inside softmax and attention: PyTorch's exp_u20 promises 20 ulps.
  double fast_exp = 42;
  // erf in the vectors that inductor writes, and in PyTorch's own of half precision, is Abramowitz and
  // Stegun's 7.1.26: it errs relative to 1 (8.2 and 10.2 units were measured), so that of a small
  // number few digits are right. 0: it does not.
  static constexpr double kErfOfVectors = 12;
  double erf_of_one = 0;
  // Relative error of an operand of a matrix product, and of one of a convolution: 0, or where the
  // user allowed such products for binary32, 2^-11 (TF32; 2^-10 on a GPU, whose matrix units may
  // cut the last bits off) or 2^-8 (bfloat16).
  double operand = 0, convolved = 0;
  // Whether a GPU computed the call.
  bool gpu = false;
  // Whether it is about tensors of half precision, which a GPU's matrix units multiply.
  bool half = false;
  // Whether a GPU may store parts of a product of bfloat16, or binary16, in that type before it
  // adds them up (torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction).
  bool bfloat16_parts = false, float16_parts = false;
  // Whether convolutions of bfloat16 may run in PyTorch's own kernels, which add up in bfloat16: on
  // CPUs where oneDNN has none, such as those without AVX-512.
  bool bfloat16_steps = false;
  // Whether convolutions of binary32 on a CPU may run in NNPACK, which takes the algorithms of
  // Winograd and Fourier (fast_convolutions.h).
  bool nnpack = false;
  // For a second look at a call that is outside: the unit of the type of half precision in which sums
  // may be kept; 0: they are not. What is inside then is a loss of precision, not another function.
  double narrow_sums = 0;
  ThreadPool* pool = nullptr;

  bool binary64() const { return unit < 0x1p-30; }
  // The unit of kernels that keep results on the way in their element type.
  double unit_of(Element e) const { return std::fmax(half_unit(e), unit); }
  bool holds(double x) const {
    return binary64() || static_cast<double>(static_cast<float>(x)) == x;
  }

  // An operand of the kernel. A number that binary32 does not hold, such as a learning rate of 0.05,
  // is rounded when the kernel takes it.
  Estimate given(Estimate e) const {
    if (e.radius == 0 && finite(e.value) && !holds(e.value)) e.radius = unit * std::fabs(e.value);
    return e;
  }
  // One rounding of a number that is known up to its radius.
  Estimate rounded(Estimate e) const {
    if (!finite(e.value)) return {e.value, e.radius < kInfinity ? 0.0 : kInfinity};
    if (e.radius == 0 && !binary64() && holds(e.value) &&
        (e.value == 0 || std::fabs(e.value) >= smallest)) {
      return e;
    }
    return more(e, unit);
  }
  // Adds a relative error, which stands for one or several roundings.
  Estimate more(Estimate e, double relative) const {
    if (!finite(e.value)) return {e.value, e.radius < kInfinity ? 0.0 : kInfinity};
    const double size = std::fabs(e.value) + e.radius;
    if (!(size * (1 + relative) < overflow)) {
      if (std::fabs(e.value) - e.radius >= overflow * (1 + 4 * relative))
        return {std::copysign(kInfinity, e.value), 0};
      return {e.value, kInfinity};
    }
    double radius = e.radius + relative * size * oracle::kOutward;
    if (size < smallest && size > 0) radius += smallest;
    return {e.value, radius};
  }

  Estimate add(Estimate a, Estimate b) const {
    a = given(a), b = given(b);
    return rounded({a.value + b.value, a.radius + b.radius});
  }
  Estimate sub(Estimate a, Estimate b) const {
    a = given(a), b = given(b);
    return rounded({a.value - b.value, a.radius + b.radius});
  }
  Estimate mul(Estimate a, Estimate b) const { return rounded(product(given(a), given(b))); }
  // Also by a multiplication with the rounded reciprocal.
  Estimate div(Estimate a, Estimate b) const {
    a = given(a), b = given(b);
    const Estimate q = quotient(a, b);
    int exponent = 0;
    if (b.radius == 0 && std::fabs(std::frexp(b.value, &exponent)) == 0.5) return rounded(q);
    return more(q, 2.5 * unit);
  }
  Estimate sqrt(Estimate a) const {
    const double v = std::sqrt(a.value);
    if (a.radius == 0) return a.value > 0 ? more({v, 0}, 1.5 * unit) : Estimate{v, 0};
    const double low = std::sqrt(std::fmax(0.0, a.value - a.radius));
    if (a.value < 0) return {v, a.value + a.radius >= 0 ? kInfinity : 0};
    return more({v, std::fmax(v - low, std::sqrt(a.value + a.radius) - v)}, 1.5 * unit);
  }
  Estimate exp(Estimate a) const { return increasing(a, oracle::exponential, elementary); }
  Estimate quick_exp(Estimate a) const { return increasing(a, oracle::exponential, fast_exp); }
  Estimate log(Estimate a) const {
    if (a.radius > 0 && a.value - a.radius <= 0) return {oracle::logarithm(a.value), kInfinity};
    return increasing(a, oracle::logarithm, elementary);
  }
  Estimate tanh(Estimate a) const { return increasing(a, oracle::hyperbolic_tangent, elementary); }
  Estimate erf(Estimate a) const {
    Estimate e = increasing(a, oracle::error_function, elementary);
    e.radius += erf_of_one * unit;
    return e;
  }
  // 1 / (1 + exp(-x)).
  Estimate sigmoid(Estimate a) const {
    return increasing(
        a, [](double x) { return 1 / (1 + oracle::exponential(-x)); }, elementary + 4);
  }
  // The larger of two; a move where both are exact.
  static Estimate max(Estimate a, Estimate b) {
    if (a.value != a.value || b.value != b.value) return {std::nan(""), 0};
    return {std::fmax(a.value, b.value), std::fmax(a.radius, b.radius)};
  }
  // The same, for the second look at a call on `e`.
  Arithmetic with_narrow_sums(Element e) const {
    Arithmetic m = *this;
    m.narrow_sums = half_unit(e);
    return m;
  }
  // The error that a sum of n rounded terms makes, relative to the sum of the terms' magnitudes:
  // gamma(n - 1) in any order (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed.,
  // section 4.2), or 8 sqrt(n) units, which independent roundings exceed with a probability below
  // 3e-14 (Higham and Mary, A new approach to probabilistic rounding error analysis, 2019). The
  // roundings of equal terms that are added in a chain go the same way: `equal` takes gamma(n - 1).
  // Sums in half precision keep some digits if they are added up pair by pair, or in lanes and blocks:
  // a rounding for each level, and one of the result. A longer chain of roundings is not excused.
  double of_sum(int64_t n, bool equal = false) const {
    const auto terms = static_cast<double>(n);
    if (n <= 1) return 0;
    const double worst = oracle::gamma(terms - 1, unit);
    return (equal ? worst : std::fmin(worst, 8 * std::sqrt(terms) * unit)) + terms * 0x1p-53 +
           0x1p-52 + (narrow_sums > 0 ? (1 + std::log2(terms)) * narrow_sums : 0);
  }

  // The same of a matrix product or convolution over n terms whose operands err by `rounded`. A
  // GPU's matrix units align some terms and what was summed before, cut each at 24 bits and add: an
  // error of 2^-23 of the largest for each term and each group's sum, always towards zero, so that
  // the worst case alone holds (Fasi, Higham, Mikaitis and Pranesh, Numerical behavior of NVIDIA
  // tensor cores, 2021). Groups have four terms at least.
  double of_products(int64_t n, double rounded) const {
    const double cut = gpu && !binary64() && (half || rounded > 0)
                           ? oracle::gamma(1.25 * static_cast<double>(n + 1), 2 * unit) +
                                 (narrow_sums > 0 ? of_sum(n) : 0)
                           : of_sum(n);
    return cut + 2 * rounded + rounded * rounded;
  }

  template <typename F>
  Estimate increasing(Estimate a, F f, double units) const {
    Estimate e = increased(a, f, units);
    // Kernels of exp scale by 2^(n-1) and double, so that they flush what is below twice the least
    // normal number.
    if (std::fabs(e.value) < 2 * smallest && e.value != 0) e.radius += 2 * smallest;
    return e;
  }
  template <typename F>
  Estimate increased(Estimate a, F f, double units) const {
    const double v = f(a.value);
    if (a.radius == 0) {
      // exp(0), log(1), tanh(0): a number that binary32 holds because it is exact.
      if (a.value == 0 || v == 0) return {v, 0};
      return more({v, 0}, units * unit);
    }
    if (!(a.radius < kInfinity)) return {v, kInfinity};
    const double wide = std::fmax(f(a.value + a.radius) - v, v - f(a.value - a.radius));
    return more({v, wide == wide ? wide : kInfinity}, units * unit);
  }

  // The propagated error alone, without a rounding.
  static Estimate product(Estimate a, Estimate b) {
    const double v = a.value * b.value;
    if (a.radius == 0 && b.radius == 0) return {v, 0};
    return {v, std::fabs(a.value) * b.radius + std::fabs(b.value) * a.radius + a.radius * b.radius};
  }
  static Estimate quotient(Estimate a, Estimate b) {
    const double v = a.value / b.value;
    if (a.radius == 0 && b.radius == 0) return {v, 0};
    const double least = std::fabs(b.value) - b.radius;
    if (!(least > 0)) return {v, kInfinity};
    return {v, (a.radius + std::fabs(v) * b.radius) / least};
  }
};

// An estimate whose error is `units` units of the magnitude.
inline Estimate within(const Arithmetic& m, double value, double magnitude, double units) {
  if (!finite(value)) return {value, 0};
  return m.rounded({value, units * m.unit * magnitude + 0x1p-50 * std::fabs(magnitude)});
}

}  // namespace twinrun::aten
