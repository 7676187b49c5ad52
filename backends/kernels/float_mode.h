// The floating-point mode of this thread, and the arithmetic that flushes alike on every processor
// (numerics.md, "The emulated TPU"). No standard header, because files compiled for several
// instruction sets include this one.
//
//   const FloatMode saved = float_mode();
//   set_float_mode(saved | kDenormalsAreZero);
//   float r = multiplied(a, b);                 // flushed as x86 flushes a * b
//
// With denormals as zeros, x86 makes a result zero if it is tiny after rounding with unbounded
// exponent (Intel SDM volume 1, 4.9.1.5 and 10.2.3.3), ARM if it is tiny before rounding (Arm ARM,
// A1.5, "Flushing denormalized numbers to zero"). They differ where the exact result lies in
// [2^-126 - 2^-151, 2^-126): x86 gives 2^-126, ARM gives 0. Sums and differences of binary32
// numbers are never there, because they are multiples of 2^-149; nor are quotients, which miss a
// power of two by at least one part in 2^24 if they are not one; square roots are far from it.
// Products, fused multiply-adds and roundings of binary64 numbers can be there, so for them these
// functions compute on ARM where the exact result lies. In the plain mode every processor rounds
// such a result to 2^-126, so the functions need not know the mode.
#pragma once

#include <stdint.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace twinrun {

using FloatMode = uint64_t;

#if defined(__x86_64__)
inline constexpr FloatMode kPlainMode = 0x1F80;         // MXCSR: nearest even, no traps
inline constexpr FloatMode kDenormalsAreZero = 0x8040;  // FTZ and DAZ
inline FloatMode float_mode() { return _mm_getcsr(); }
inline void set_float_mode(FloatMode mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
inline constexpr FloatMode kPlainMode = 0;                          // FPCR
inline constexpr FloatMode kDenormalsAreZero = FloatMode{1} << 24;  // FZ
inline FloatMode float_mode() {
  FloatMode mode;
  asm volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
inline void set_float_mode(FloatMode mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
#error \
    "twinrun needs to know how this processor makes denormals zeros: x86-64 and AArch64 are known"
#endif

#if defined(__x86_64__)

inline float multiplied(float a, float b) { return a * b; }
inline float fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float narrowed(double x) { return static_cast<float>(x); }

#else

// The smallest number that rounds to 2^-126 with 24 bits and unbounded exponent, and 2^-126.
inline constexpr double kRoundsToNormal = 0x1p-126 - 0x1p-151, kSmallestNormal = 0x1p-126;

// x as binary32.
inline float narrowed(double x) {
  const double size = __builtin_fabs(x);
  const bool up = size >= kRoundsToNormal && size < kSmallestNormal;
  return static_cast<float>(up ? __builtin_copysign(kSmallestNormal, x) : x);
}
// The product of two binary32 numbers is exact in binary64, whose range it does not leave.
inline float multiplied(float a, float b) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double size = __builtin_fabs(product);
  const bool up = size >= kRoundsToNormal && size < kSmallestNormal;
  const float result = a * b;
  return up ? __builtin_copysignf(0x1p-126f, result) : result;
}
// Only a result of 0 can be wrong. There the exact value is sum + error (Knuth's two-sum); sum is
// that value rounded to binary64, so a limit that sum does not equal decides by itself.
inline float fused(float a, float b, float c) {
  const float result = __builtin_fmaf(a, b, c);
  if (result != 0.0f) [[likely]]
    return result;
  const double product = static_cast<double>(a) * static_cast<double>(b), addend = c;
  const double sum = product + addend, part = sum - product;
  const double error = (product - (sum - part)) + (addend - part);
  const double size = __builtin_fabs(sum), beyond = sum < 0 ? -error : error;
  const bool least = size > kRoundsToNormal || (size == kRoundsToNormal && beyond >= 0);
  const bool most = size < kSmallestNormal || (size == kSmallestNormal && beyond < 0);
  return least && most ? __builtin_copysignf(0x1p-126f, result) : result;
}

#endif

}  // namespace twinrun
