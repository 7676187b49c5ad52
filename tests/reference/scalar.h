// binary32 operations with flush to zero in software: inputs with exponent 0 become signed zeros; a
// result becomes a signed zero if it is tiny after rounding with unbounded exponent (numerics.md,
// "The emulated TPU").
#pragma once

#include <cmath>

#include "program/base/bits.h"

namespace twinrun::reference {

struct Scalar {
  bool flush = false;

  float in(float x) const { return flush ? twinrun::flush(x) : x; }

  float add(float a, float b) const { return tiny_exact(in(a) + in(b)); }  // a tiny sum is exact
  float sub(float a, float b) const { return tiny_exact(in(a)-in(b)); }
  float mul(float a, float b) const {
    a = in(a), b = in(b);
    const float r = a * b;
    if (!near_tiny(r)) return r;
    return flushed(r, std::fabs(a) < std::fabs(b) ? (a * kScale) * b : a * (b * kScale));
  }
  float div(float a, float b) const {
    a = in(a), b = in(b);
    const float r = a / b;
    return near_tiny(r) ? flushed(r, (a * kScale) / b) : r;
  }
  float sqrt(float a) const { return std::sqrt(in(a)); }
  float fma(float a, float b, float c) const {
    a = in(a), b = in(b), c = in(c);
    const float r = std::fma(a, b, c);
    if (!near_tiny(r)) return r;
    return flushed(r, std::fabs(a) < std::fabs(b) ? std::fma(a * kScale, b, c * kScale)
                                                  : std::fma(a, b * kScale, c * kScale));
  }

 private:
  static constexpr float kScale = 0x1p64f;
  static constexpr float kMinNormal = 0x1p-126f;

  // Whether r is not zero and may be tiny. 2^-126 itself counts: it may have been rounded up to.
  bool near_tiny(float r) const { return flush && r != 0 && std::fabs(r) <= kMinNormal; }
  // `scaled` is the result of the same operation times 2^64: in this range the exponent does not
  // underflow, so that it is rounded as with unbounded exponent.
  static float flushed(float r, float scaled) {
    return std::fabs(scaled) < kMinNormal * kScale ? std::copysign(0.0f, r) : r;
  }
  float tiny_exact(float r) const { return flush ? twinrun::flush(r) : r; }
};

}  // namespace twinrun::reference
