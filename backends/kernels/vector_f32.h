// Operations on eight binary32 at once that the compiler vectorises poorly: maximum and minimum,
// comparisons to bytes, selection. Each gives the bits of its scalar form in arithmetic.h and
// blocks.cc. Private to backends/kernels.
//
//   _mm256_storeu_ps(r, canonical8(maximum8(flush8<true>(a), flush8<true>(b))));
#pragma once

#include <cstdint>

#include "backends/kernels/intrinsics.h"

namespace twinrun {

inline __m256 canonical8(__m256 x) {
  const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
  return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

template <bool kFlush>
inline __m256 flush8(__m256 x) {
  if constexpr (!kFlush) return x;
  const __m256i u = _mm256_castps_si256(x), exponent = _mm256_set1_epi32(0x7F800000);
  const __m256i tiny = _mm256_cmpeq_epi32(_mm256_and_si256(u, exponent), _mm256_setzero_si256());
  const __m256i sign = _mm256_and_si256(u, _mm256_set1_epi32(static_cast<int32_t>(0x80000000u)));
  return _mm256_castsi256_ps(_mm256_blendv_epi8(u, sign, tiny));
}

// MAXPS returns its second operand if both are zeros or one is NaN, so the two orders differ only
// there. A NaN result may have any payload: the caller applies canonical8.
inline __m256 maximum8(__m256 a, __m256 b) {
  const __m256 m = _mm256_and_ps(_mm256_max_ps(a, b), _mm256_max_ps(b, a));
  return _mm256_or_ps(m, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}
inline __m256 minimum8(__m256 a, __m256 b) {
  const __m256 m = _mm256_or_ps(_mm256_min_ps(a, b), _mm256_min_ps(b, a));
  return _mm256_or_ps(m, _mm256_cmp_ps(a, b, _CMP_UNORD_Q));
}

// Turns 32 lane masks into 32 bytes of 0 or 1, in order.
inline __m256i mask_bytes(__m256 m0, __m256 m1, __m256 m2, __m256 m3) {
  const __m256i low = _mm256_packs_epi32(_mm256_castps_si256(m0), _mm256_castps_si256(m1));
  const __m256i high = _mm256_packs_epi32(_mm256_castps_si256(m2), _mm256_castps_si256(m3));
  // The packs work within 128-bit halves; the permutation below restores the order.
  const __m256i mixed = _mm256_packs_epi16(low, high);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm256_and_si256(_mm256_permutevar8x32_epi32(mixed, order), _mm256_set1_epi8(1));
}

// Lane masks from 8 bytes: all ones where the byte is not 0.
inline __m256 byte_mask8(const uint8_t* p) {
  const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_cmpgt_epi32(wide, _mm256_setzero_si256()));
}

}  // namespace twinrun
