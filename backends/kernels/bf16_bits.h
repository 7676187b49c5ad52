// Rounding of binary32 to bf16, for all code that packs operands. No standard header, because files
// compiled for several instruction sets include this one.
#pragma once

#include <stdint.h>

// Before a loop: its iterations are independent, although the pointers may look as if they overlap.
#ifdef __clang__
#define TWINRUN_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define TWINRUN_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace twinrun {
namespace {

// Rounds the binary32 number with bits u to bf16, to nearest even, and returns it in the upper 16
// bits. Denormals become zeros of the same sign, and every NaN becomes 0x7FC0. Works on the bits,
// so that the compiler can vectorise loops that call it.
inline uint32_t bf16_bits(uint32_t u) {
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  uint32_t r = (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
  r = magnitude < 0x00800000u ? u & 0x80000000u : r;
  return magnitude > 0x7F800000u ? 0x7FC00000u : r;
}

}  // namespace
}  // namespace twinrun
