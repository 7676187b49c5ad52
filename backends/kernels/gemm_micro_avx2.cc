// Tiles of 6 x 16 for AVX2 with FMA, the least that the project requires.
#include <immintrin.h>

#include "backends/kernels/gemm_micro_tiles.h"

namespace twinrun {
namespace {

struct Avx2 {
  using reg = __m256;
  static constexpr int kLanes = 8;
  static TWINRUN_INLINE __m256i mask(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  static TWINRUN_INLINE reg load(const float* p) { return _mm256_loadu_ps(p); }
  static TWINRUN_INLINE reg load_some(const float* p, int n) {
    return n == kLanes ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, mask(n));
  }
  static TWINRUN_INLINE void store(float* p, reg x) { _mm256_storeu_ps(p, x); }
  static TWINRUN_INLINE void store_some(float* p, reg x, int n) {
    if (n == kLanes) {
      _mm256_storeu_ps(p, x);
    } else {
      _mm256_maskstore_ps(p, mask(n), x);
    }
  }
  static TWINRUN_INLINE reg set1(const float* p) { return _mm256_broadcast_ss(p); }
  static TWINRUN_INLINE reg zero() { return _mm256_setzero_ps(); }
  static TWINRUN_INLINE reg fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
  static TWINRUN_INLINE reg add(reg a, reg b) { return _mm256_add_ps(a, b); }
  static TWINRUN_INLINE reg canonical(reg x) {
    const __m256 nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FC00000));
    return _mm256_blendv_ps(x, nan, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  }
};

}  // namespace

const GemmKernels kGemmAvx2 = {6, 8, TileTable<Avx2, 6>::f32, TileTable<Avx2, 3>::bf16_halves};

}  // namespace twinrun
