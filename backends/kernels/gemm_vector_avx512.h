// The vector type of the tiles (gemm_micro_tiles.h) for AVX-512F: sixteen binary32. Included by the
// files compiled for AVX-512 only.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#include "backends/kernels/gemm_micro_tiles.h"

namespace twinrun {
namespace {

struct Avx512 {
  using reg = __m512;
  static constexpr int kLanes = 16;
  static TWINRUN_INLINE __mmask16 mask(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
  static TWINRUN_INLINE reg load(const float* p) { return _mm512_loadu_ps(p); }
  static TWINRUN_INLINE reg load_some(const float* p, int n) {
    return _mm512_maskz_loadu_ps(mask(n), p);
  }
  static TWINRUN_INLINE void store(float* p, reg x) { _mm512_storeu_ps(p, x); }
  static TWINRUN_INLINE void store_some(float* p, reg x, int n) {
    _mm512_mask_storeu_ps(p, mask(n), x);
  }
  static TWINRUN_INLINE reg set1(const float* p) { return _mm512_set1_ps(*p); }
  static TWINRUN_INLINE reg zero() { return _mm512_setzero_ps(); }
  static TWINRUN_INLINE reg fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }
  static TWINRUN_INLINE reg add(reg a, reg b) { return _mm512_add_ps(a, b); }
  static TWINRUN_INLINE reg canonical(reg x) {
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(_mm512_castps_si512(x),
                                                     _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q),
                                                     _mm512_set1_epi32(0x7FC00000)));
  }
};

}  // namespace
}  // namespace twinrun
