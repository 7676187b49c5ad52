// Rounding of binary32 to bf16, for all code that packs operands. No standard header, because files
// compiled for several instruction sets include this one.
#pragma once

#include <stdint.h>

namespace twinrun {
namespace {

// Rounds the binary32 with bits u to bf16, nearest even, and returns it in the upper 16 bits. A
// number with exponent 0 becomes a zero of its sign, a NaN canonical. Works on bits, so that loops
// over it vectorise.
inline uint32_t bf16_bits(uint32_t u) {
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  uint32_t r = (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
  r = magnitude < 0x00800000u ? u & 0x80000000u : r;
  return magnitude > 0x7F800000u ? 0x7FC00000u : r;
}

}  // namespace
}  // namespace twinrun
