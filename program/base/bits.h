// Bit-level operations on binary32 and bfloat16, as the numeric contract defines them
// (docs/method/numerics.md).
//
//   bf16_round(1.00390625f) == 0x3F80;        // 1 + 2^-8 ties to even
//   ulp_distance(1.0f, 1.0000001f) == 1;
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace twinrun {

inline constexpr uint32_t kCanonicalNaN = 0x7FC00000u;
inline constexpr uint16_t kCanonicalNaN16 = 0x7FC0u;

inline uint32_t to_bits(float x) { return std::bit_cast<uint32_t>(x); }
inline float from_bits(uint32_t u) { return std::bit_cast<float>(u); }

// Every stored NaN is kCanonicalNaN (contract rule 6).
inline float canonical(float x) { return x != x ? from_bits(kCanonicalNaN) : x; }

// A number whose exponent field is 0 (a denormal) becomes a zero of the same sign.
inline float flush(float x) {
  const uint32_t u = to_bits(x);
  return (u & 0x7F800000u) == 0 ? from_bits(u & 0x80000000u) : x;
}

inline float bf16_to_f32(uint16_t b) { return from_bits(static_cast<uint32_t>(b) << 16); }

// To nearest even; overflow gives infinity; every NaN becomes the canonical one; bf16 denormals are
// kept.
inline uint16_t bf16_round(float x) {
  const uint32_t u = to_bits(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return kCanonicalNaN16;
  return static_cast<uint16_t>((u + 0x7FFFu + ((u >> 16) & 1u)) >> 16);
}

// The TPU's conversion: denormals to signed zero first, then nearest even. A normal binary32 never
// rounds into bf16's denormals, since both formats share their exponent range.
inline uint16_t bf16_round_flush(float x) { return bf16_round(flush(x)); }

// Rounds toward zero, as a faulty engine does.
inline uint16_t bf16_truncate(float x) {
  const uint32_t u = to_bits(x);
  if ((u & 0x7FFFFFFFu) > 0x7F800000u) return kCanonicalNaN16;
  return static_cast<uint16_t>(u >> 16);
}

// Maps the bits of floats onto integers so that neighbours differ by one; +0 and -0 both map to 0.
inline int32_t ordered_bits(uint32_t bits) {
  const int32_t sign = static_cast<int32_t>(bits) >> 31;  // 0 or -1
  return (static_cast<int32_t>(bits & 0x7FFFFFFFu) ^ sign) - sign;
}
inline int64_t ordered(float x) { return ordered_bits(to_bits(x)); }

// Units in the last place between two numbers; 0 for two NaNs, the maximum for a NaN and a number.
inline int64_t ulp_distance(float a, float b) {
  const bool na = a != a, nb = b != b;
  if (na || nb) return na && nb ? 0 : std::numeric_limits<int64_t>::max();
  const int64_t d = ordered(a) - ordered(b);
  return d < 0 ? -d : d;
}

}  // namespace twinrun
