// Products of 14 x 32 tiles in halves of 7 rows by VDPBF16PS (AVX512-BF16): 28 accumulators, two
// vectors of B, one broadcast of A.
#include "backends/kernels/gemm_images_avx512bf16.h"
#include "backends/kernels/gemm_quads_tiles.h"

namespace twinrun {
namespace {

struct Avx512Bf16 : Avx512, RoundedImages<Packing::kQuads> {
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
};

}  // namespace

const GemmKernels kGemmAvx512Bf16 = {.rows = 2 * kQuadsRows,
                                     .lanes = 16,
                                     .packing = Packing::kQuads,
                                     .block = multiply_quads<Avx512Bf16>,
                                     .rounds_a = true,
                                     .packers = &kImagePackers<Packing::kQuads>};

}  // namespace twinrun
