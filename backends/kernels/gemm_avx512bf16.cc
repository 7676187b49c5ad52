// Products of 14 x 32 tiles in halves of 7 rows by VDPBF16PS (AVX512-BF16): 28 accumulators, two
// vectors of B, one broadcast of A. Operands are rounded to bf16 where they are packed.
#include "backends/kernels/gemm_quads_tiles.h"
#include "backends/kernels/gemm_vector_avx512.h"

namespace twinrun {
namespace {

struct Avx512Bf16 : Avx512 {
  using pairs = __m512i;
  static TWINRUN_INLINE pairs load_pairs(const uint32_t* p) { return _mm512_loadu_si512(p); }
  static TWINRUN_INLINE pairs set1_pairs(const uint32_t* p) {
    int word;
    __builtin_memcpy(&word, p, sizeof word);
    return _mm512_set1_epi32(word);
  }
  static TWINRUN_INLINE reg dot(reg c, pairs x, pairs y) {
    return _mm512_dpbf16_ps(c, __builtin_bit_cast(__m512bh, x), __builtin_bit_cast(__m512bh, y));
  }
  // x, then y, as bf16: to nearest even; denormals become zeros and NaNs stay NaNs.
  static TWINRUN_INLINE pairs round(reg x, reg y) {
    return __builtin_bit_cast(pairs, _mm512_cvtne2ps_pbh(y, x));
  }

  // Images of A.
  static constexpr int64_t kRows = 16, kMostTiles = 36;
  static constexpr bool kWholeTiles = false;
  static TWINRUN_INLINE void narrow(const float* from, uint16_t* to, int n) {
    if (n == 32) {
      _mm512_storeu_si512(to, round(load(from), load(from + 16)));
      return;
    }
    const uint32_t all = (1u << n) - 1u;
    const auto first = static_cast<__mmask16>(all), second = static_cast<__mmask16>(all >> 16);
    const pairs rounded = round(_mm512_maskz_loadu_ps(first, from),
                                second == 0 ? zero() : _mm512_maskz_loadu_ps(second, from + 16));
    _mm512_mask_storeu_epi16(to, all, rounded);
  }
  // Within each four k: the third, the first, the fourth, the second (Packing::kQuads).
  static TWINRUN_INLINE pairs quads(pairs x) {
    const __m512i order = _mm512_set4_epi32(0x0B0A0F0E, 0x09080D0C, 0x03020706, 0x01000504);
    return _mm512_shuffle_epi8(x, order);
  }
  static TWINRUN_INLINE void arrange(uint16_t* block) {
    _mm512_storeu_si512(block, quads(_mm512_loadu_si512(block)));
  }
  static TWINRUN_INLINE void whole_block(const float* from, uint16_t* to, int64_t ahead) {
    __builtin_prefetch(from + ahead, 0, 2);
    __builtin_prefetch(from + ahead + 16, 0, 2);
    _mm512_storeu_si512(to, quads(round(load(from), load(from + 16))));
  }
  // Sixteen words with `lower` and `upper`, of n columns each, in their halves. Null: zeros.
  static TWINRUN_INLINE pairs words(const float* lower, const float* upper, int n) {
    const __mmask16 all = mask(n);
    const reg low = lower == nullptr ? zero() : _mm512_maskz_loadu_ps(all, lower);
    const reg high = upper == nullptr ? zero() : _mm512_maskz_loadu_ps(all, upper);
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, round(low, high));
  }
  static TWINRUN_INLINE void image_of_columns(const float* a, const int64_t* offsets, int64_t k,
                                              int rows, uint32_t, uint16_t* image) {
    for (int w = 0; w < 16; ++w) {
      const int low = lower_k(Packing::kQuads, w), high = upper_k(Packing::kQuads, w);
      _mm512_storeu_si512(image + w * 32, words(low < k ? a + offsets[low] : nullptr,
                                                high < k ? a + offsets[high] : nullptr, rows));
    }
  }
};

// ---- tile images of B (ImagePackers)

void store_words(const float* lower, const float* upper, int64_t n, uint32_t edge, uint32_t* to) {
  if (n == 16) {
    _mm512_storeu_si512(to, Avx512Bf16::words(lower, upper, 16));
    return;
  }
  const __m512i rest = _mm512_set1_epi32(static_cast<int>(edge));
  const int count = static_cast<int>(n);
  _mm512_storeu_si512(
      to, _mm512_mask_mov_epi32(rest, Avx512::mask(count), Avx512Bf16::words(lower, upper, count)));
}

void pack_row(const float* lower, const float* upper, int64_t n, uint32_t edge, uint32_t* to,
              int64_t panel, uint32_t* last) {
  for (int64_t j = 0; j < n; j += 16) {
    uint32_t* const begin = j / 32 == (n - 1) / 32 ? last : to + j / 32 * panel;
    store_words(lower == nullptr ? nullptr : lower + j, upper == nullptr ? nullptr : upper + j,
                n - j < 16 ? n - j : 16, edge, begin + j % 32 / 16 * kTileWords);
  }
}

void pack_columns(const float* first, int64_t column_stride, int count, uint32_t edge,
                  uint32_t* tile) {
  alignas(64) uint32_t words[kTileWords];
  for (int i = 0; i < count; ++i) {
    const float* const column = first + i * column_stride;
    _mm512_store_si512(words + i * 16, Avx512Bf16::quads(Avx512Bf16::round(
                                           Avx512::load(column), Avx512::load(column + 16))));
  }
  for (int i = count * 16; i < kTileWords; ++i) words[i] = edge;
  transpose16(words, tile);
}

constexpr ImagePackers kPackers = {pack_row, pack_columns};

}  // namespace

const GemmKernels kGemmAvx512Bf16 = {.rows = 2 * kQuadsRows,
                                     .lanes = 16,
                                     .packing = Packing::kQuads,
                                     .block = multiply_quads<Avx512Bf16>,
                                     .rounds_a = true,
                                     .packers = &kPackers};

}  // namespace twinrun
