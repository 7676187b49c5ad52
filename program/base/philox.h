// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011): the only
// source of randomness. It is counter-based, a function of (seed, stream, step, sample, element),
// so the order of draws and the number of threads cannot matter.
//
//   RandomKey key{seed, kStreamShuffle};
//   float u = uniform(draw(key, step, sample, element));       // [0, 1)
#pragma once

#include <array>
#include <cstdint>

namespace twinrun {

using Philox4 = std::array<uint32_t, 4>;

// Ten rounds. Published vectors (Random123 kat_vectors) are tested in tests/base/philox_test.cc.
Philox4 philox4x32(Philox4 counter, std::array<uint32_t, 2> key);

// Each use of random numbers has streams of its own.
inline constexpr uint32_t kStreamInit = 1u << 24;     // + index of the state variable
inline constexpr uint32_t kStreamShuffle = 2u << 24;  // sample = epoch
inline constexpr uint32_t kStreamOps = 3u << 24;      // + index of the random op in the program
inline constexpr uint32_t kStreamData = 4u << 24;     // procedural data
// Choices of a variant (backends/variants).
inline constexpr uint32_t kStreamVariant = 5u << 24;
inline constexpr uint32_t kStreamEnsemble = 6u << 24;  // ulps by which initial weights are changed
// + index of an op: which elements of its result are compared.
inline constexpr uint32_t kStreamSample = 7u << 24;

struct RandomKey {
  uint64_t seed = 0;
  uint32_t stream = 0;
};

// Four draws at once, those of elements 4 * block to 4 * block + 3. Counter = (block, sample, step,
// stream), key = seed.
Philox4 draw_four(RandomKey key, uint32_t step, uint32_t sample, uint32_t block);
// One 32-bit draw: word element mod 4 of block element / 4.
uint32_t draw(RandomKey key, uint32_t step, uint32_t sample, uint64_t element);

// u * 2^-24 with the upper 24 bits of u: [0, 1), every value exact in binary32.
inline float uniform(uint32_t u) { return static_cast<float>(u >> 8) * 0x1p-24f; }

// floor(u * n / 2^32): Lemire's multiply-shift without rejection; bias below n / 2^32.
inline uint32_t bounded(uint32_t u, uint32_t n) {
  return static_cast<uint32_t>((static_cast<uint64_t>(u) * n) >> 32);
}

}  // namespace twinrun
