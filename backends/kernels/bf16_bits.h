// Rounding to bf16, for all that packs. Included by files of several instruction sets, so no standard
// header.
#pragma once

#include <stdint.h>

namespace twinrun {
namespace {

// Nearest even on the upper 16 bits of a binary32; exponent 0 becomes a signed zero, NaN canonical.
// On bits, so that it vectorises.
inline uint32_t bf16_bits(uint32_t u) {
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  uint32_t r = (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
  r = magnitude < 0x00800000u ? u & 0x80000000u : r;
  return magnitude > 0x7F800000u ? 0x7FC00000u : r;
}

}  // namespace
}  // namespace twinrun
