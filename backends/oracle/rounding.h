// The arithmetic of error bounds: units in the last place, gamma, and what storing a result adds.
// docs/method/bounds.md has the derivations. Everything is computed in binary64 and rounded
// outward.
//
//   // The radius becomes half an ulp of binary32.
//   store({1.0 / 3, 0x1p-52}, Final::kRounds, {.dtype = DType::kF32})
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "program/base/bits.h"
#include "program/base/types.h"

namespace twinrun::oracle {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kUnit = 0x1p-24;        // unit roundoff of binary32
inline constexpr double kUnitBf16 = 0x1p-8;     // of bfloat16
inline constexpr double kMinNormal = 0x1p-126;  // smallest normal number of both
inline constexpr double kOutward = 1 + 0x1p-40;
// Numbers of at least this size round to infinity.
inline constexpr double kOverflowF32 = 0x1p128 - 0x1p103;
inline constexpr double kOverflowBf16 = 0x1p128 - 0x1p119;

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

// 2^(floor(log2 |x|) - precision), not below the format's `smallest`; |x| below 2^900.
inline double scaled_binade(double x, int precision, double smallest) {
  const int exponent = static_cast<int>(std::bit_cast<uint64_t>(std::fabs(x)) >> 52) - 1023;
  if (exponent < -126) return smallest;
  return std::bit_cast<double>(static_cast<uint64_t>(exponent - precision + 1023) << 52);
}
// Half a unit in the last place of the binade of x, gradual underflow included.
inline double half_ulp_f32(double x) { return scaled_binade(x, 24, 0x1p-150); }
inline double half_ulp_bf16(double x) { return scaled_binade(x, 8, 0x1p-134); }

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
  if (final == Final::kRounds) radius += half_ulp_f32(size + radius);
  if (storage.flush && size - radius < kMinNormal) {
    radius = std::fmax(radius, std::fmin(size, radius + kMinNormal));
  }
  double overflow = kOverflowF32;
  if (storage.dtype == DType::kBF16) {
    overflow = kOverflowBf16;
    before_last = radius;
    radius += half_ulp_bf16(size + radius);
  }
  if (size + before_last >= overflow) {
    // It may or may not overflow: untestable.
    if (size - before_last < overflow) return {e.value, kInfinity};
    return {std::copysign(kInfinity, e.value), 0};
  }
  return {e.value, radius * kOutward};
}

}  // namespace twinrun::oracle
