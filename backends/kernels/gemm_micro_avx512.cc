// Tiles of 14 x 32 for AVX-512F: 28 accumulators, two vectors of B, one broadcast of A.
#include "backends/kernels/bf16_bits.h"
#include "backends/kernels/gemm_vector_avx512.h"

namespace twinrun {
namespace {

void round_bf16(const float* src, float* dst, int64_t n) {
  TWINRUN_INDEPENDENT
  for (int64_t i = 0; i < n; ++i)
    dst[i] = __builtin_bit_cast(float, bf16_bits(__builtin_bit_cast(uint32_t, src[i])));
}

}  // namespace

const GemmKernels kGemmAvx512 = {.rows = 14,
                                 .lanes = 16,
                                 .f32 = TileTable<Avx512, 14>::f32,
                                 .bf16 = TileTable<Avx512, 7>::bf16_halves,
                                 .round = round_bf16};

}  // namespace twinrun
