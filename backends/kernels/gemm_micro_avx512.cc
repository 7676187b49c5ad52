// Tiles of 14 x 32 for AVX-512F: 28 accumulators, two vectors of B, one broadcast of A.
#include <immintrin.h>

#include "backends/kernels/bf16_bits.h"
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

void round_bf16(const float* src, float* dst, int64_t n) {
  TWINRUN_INDEPENDENT
  for (int64_t i = 0; i < n; ++i)
    dst[i] = __builtin_bit_cast(float, bf16_bits(__builtin_bit_cast(uint32_t, src[i])));
}

}  // namespace

const GemmKernels kGemmAvx512 = {
    14, 16, TileTable<Avx512, 14>::f32, TileTable<Avx512, 7>::bf16_halves, nullptr, round_bf16};

}  // namespace twinrun
