// The arithmetic of error bounds: units in the last place, gamma, and what storing a result adds.
// docs/method/bounds.md has the derivations. Everything is computed in binary64 and rounded
// outward.
//
//   // The radius becomes half an ulp of binary32.
//   store({1.0 / 3, 0x1p-52}, Final::kRounds, {.dtype = DType::kF32})
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "program/base/bits.h"
#include "program/base/types.h"

namespace twinrun::oracle {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kUnit = 0x1p-24;        // unit roundoff of binary32
inline constexpr double kMinNormal = 0x1p-126;  // smallest normal number of both
inline constexpr double kOutward = 1 + 0x1p-40;

// A binary64 value and a bound on its distance from what a conforming engine computes.
struct Estimate {
  double value = 0;
  double radius = 0;
};

inline bool finite(double x) { return std::fabs(x) < kInfinity; }

// How far a found number is from an estimate, in units of its radius: above 1 it is outside. 0: the
// same number, +0 and -0 or two NaN among them. Infinity: NaN or an infinity on one side only, or
// another number where the radius is 0.
inline double ratio(double found, Estimate e) {
  if (found == e.value || (found != found && e.value != e.value)) return 0;
  if (!finite(found) || !finite(e.value)) return kInfinity;
  return e.radius > 0 ? std::fabs(found - e.value) / e.radius : kInfinity;
}

// A floating-point type: the bits of its significand, half its smallest number, and the size from
// which on numbers round to infinity.
struct Format {
  int precision;
  double least, overflow;

  // The largest relative error of one rounding.
  constexpr double unit() const { return 1 / static_cast<double>(int64_t{1} << precision); }
  // Half a unit in the last place of the binade of x, gradual underflow included.
  double half_ulp(double x) const {
    const int exponent = static_cast<int>(std::bit_cast<uint64_t>(std::fabs(x)) >> 52) - 1023;
    if (exponent < -126) return least;
    const auto bits = static_cast<uint64_t>(exponent - precision + 1023) << 52;
    return std::max(std::bit_cast<double>(bits), least);
  }
};
inline constexpr Format kBinary16{11, 0x1p-25, 65520};
inline constexpr Format kBfloat16{8, 0x1p-134, 0x1p128 - 0x1p119};
inline constexpr Format kBinary32{24, 0x1p-150, 0x1p128 - 0x1p103};
inline constexpr Format kBinary64{53, 0, std::numeric_limits<double>::max()};

// Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., lemma 3.1: n u / (1 - n u).
inline double gamma(double n, double unit = kUnit) {
  const double nu = n * unit;
  return nu < 0.5 ? nu / (1 - nu) * kOutward : kInfinity;
}

// How the engine stores a result.
struct Storage {
  DType dtype = DType::kF32;
  bool flush = false;
  // Operands are binary64 (cpu:f64): the value is the result, without further rounding.
  bool wide = false;
};

enum class Final {
  kRounds,    // the estimated number is still to be rounded to binary32
  kIncluded,  // the radius already covers the rounding to binary32
};

// Turns an estimate of the computed number into one of the stored number: rounding, flush to zero,
// bf16, overflow.
inline Estimate store(Estimate e, Final final, Storage storage) {
  if (!finite(e.value)) return {e.value, e.radius < kInfinity ? 0.0 : kInfinity};
  const double size = std::fabs(e.value);
  double radius = e.radius;
  double before_last = radius;
  if (final == Final::kRounds) radius += kBinary32.half_ulp(size + radius);
  if (storage.flush && size - radius < kMinNormal) {
    radius = std::fmax(radius, std::fmin(size, radius + kMinNormal));
  }
  double overflow = kBinary32.overflow;
  if (storage.dtype == DType::kBF16) {
    overflow = kBfloat16.overflow;
    before_last = radius;
    radius += kBfloat16.half_ulp(size + radius);
  }
  if (size + before_last >= overflow) {
    // It may or may not overflow: untestable.
    if (size - before_last < overflow) return {e.value, kInfinity};
    return {std::copysign(kInfinity, e.value), 0};
  }
  return {e.value, radius * kOutward};
}

}  // namespace twinrun::oracle
