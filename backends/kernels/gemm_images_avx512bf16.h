// Rounding to bf16 by AVX512-BF16 while operands are packed as tile images (gemm_images.h).
// Included by the files compiled for AVX512-BF16 only.
//
//   multiply_images<RoundedImages<Packing::kPairs>>(...);     // images of A
//   .packers = &kImagePackers<Packing::kPairs>                // images of B
#pragma once

#include "backends/kernels/gemm_images.h"
#include "backends/kernels/gemm_vector_avx512.h"

namespace twinrun {
namespace {

// x, then y, as bf16: to nearest even; denormals become zeros and NaNs stay NaNs.
TWINRUN_INLINE __m512i round_pair(__m512 x, __m512 y) {
  return __builtin_bit_cast(__m512i, _mm512_cvtne2ps_pbh(y, x));
}

// 32 bf16 in the order of k, in the order of the words of an image.
template <Packing kPacking>
TWINRUN_INLINE __m512i arranged(__m512i x) {
  if constexpr (kPacking == Packing::kPairs) return x;
  // Within each four k: the third, the first, the fourth, the second.
  return _mm512_shuffle_epi8(x, _mm512_set4_epi32(0x0B0A0F0E, 0x09080D0C, 0x03020706, 0x01000504));
}

// Sixteen words with `lower` and `upper`, of n columns each, in their halves. Null: zeros.
TWINRUN_INLINE __m512i image_words(const float* lower, const float* upper, int n) {
  const __mmask16 all = Avx512::mask(n);
  const __m512 low = lower == nullptr ? Avx512::zero() : _mm512_maskz_loadu_ps(all, lower);
  const __m512 high = upper == nullptr ? Avx512::zero() : _mm512_maskz_loadu_ps(all, upper);
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, round_pair(low, high));
}

// Images of A. For VDPBF16PS one of adjacent rows stays [word][row] (gemm_quads_tiles.h), and only
// rows that exist are written.
template <Packing kPacking>
struct RoundedImages {
  static constexpr bool kWholeTiles = kPacking == Packing::kPairs;
  static constexpr int64_t kRows = kWholeTiles ? 32 : 16,
                           kMostTiles = kWholeTiles ? kLeastTiles : 36;
  static TWINRUN_INLINE void narrow(const float* from, uint16_t* to, int n) {
    if (n == 32) {
      _mm512_storeu_si512(to, round_pair(Avx512::load(from), Avx512::load(from + 16)));
      return;
    }
    const uint32_t all = (1u << n) - 1u;
    const auto first = static_cast<__mmask16>(all), second = static_cast<__mmask16>(all >> 16);
    const __m512i rounded =
        round_pair(_mm512_maskz_loadu_ps(first, from),
                   second == 0 ? Avx512::zero() : _mm512_maskz_loadu_ps(second, from + 16));
    _mm512_mask_storeu_epi16(to, all, rounded);
  }
  static TWINRUN_INLINE void arrange(uint16_t* block) {
    if constexpr (kPacking == Packing::kQuads)
      _mm512_storeu_si512(block, arranged<kPacking>(_mm512_loadu_si512(block)));
  }
  static TWINRUN_INLINE void whole_block(const float* from, uint16_t* to, int64_t ahead) {
    __builtin_prefetch(from + ahead, 0, 2);
    __builtin_prefetch(from + ahead + 16, 0, 2);
    const __m512i rounded = round_pair(Avx512::load(from), Avx512::load(from + 16));
    _mm512_storeu_si512(to, arranged<kPacking>(rounded));
  }
  static TWINRUN_INLINE void image_of_columns(const float* a, const int64_t* offsets, int64_t k,
                                              int rows, uint32_t, uint16_t* image) {
    alignas(64) uint32_t words[kTileWords];
    void* const to = kPacking == Packing::kPairs ? static_cast<void*>(words) : image;
    for (int w = 0; w < 16; ++w) {
      const int low = lower_k(kPacking, w), high = upper_k(kPacking, w);
      _mm512_storeu_si512(static_cast<char*>(to) + w * 64,
                          image_words(low < k ? a + offsets[low] : nullptr,
                                      high < k ? a + offsets[high] : nullptr, rows));
    }
    if constexpr (kPacking == Packing::kPairs) transpose16(words, image);
  }
};

// ---- tile images of B (ImagePackers)

TWINRUN_INLINE void store_words(const float* lower, const float* upper, int64_t n, uint32_t edge,
                                uint32_t* to) {
  if (n == 16) {
    _mm512_storeu_si512(to, image_words(lower, upper, 16));
    return;
  }
  const __m512i rest = _mm512_set1_epi32(static_cast<int>(edge));
  const int count = static_cast<int>(n);
  _mm512_storeu_si512(
      to, _mm512_mask_mov_epi32(rest, Avx512::mask(count), image_words(lower, upper, count)));
}

inline void pack_row(const float* lower, const float* upper, int64_t n, uint32_t edge, uint32_t* to,
                     int64_t panel, uint32_t* last) {
  for (int64_t j = 0; j < n; j += 16) {
    uint32_t* const begin = j / 32 == (n - 1) / 32 ? last : to + j / 32 * panel;
    store_words(lower == nullptr ? nullptr : lower + j, upper == nullptr ? nullptr : upper + j,
                n - j < 16 ? n - j : 16, edge, begin + j % 32 / 16 * kTileWords);
  }
}

template <Packing kPacking>
void pack_columns(const float* first, int64_t column_stride, int count, uint32_t edge,
                  uint32_t* tile) {
  alignas(64) uint32_t words[kTileWords];
  for (int i = 0; i < count; ++i) {
    const float* const column = first + i * column_stride;
    _mm512_store_si512(words + i * 16, arranged<kPacking>(round_pair(Avx512::load(column),
                                                                     Avx512::load(column + 16))));
  }
  for (int i = count * 16; i < kTileWords; ++i) words[i] = edge;
  transpose16(words, tile);
}

template <Packing kPacking>
constexpr ImagePackers kImagePackers = {pack_row, pack_columns<kPacking>};

}  // namespace
}  // namespace twinrun
