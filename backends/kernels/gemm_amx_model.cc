// The dot of the modelled AMX tile unit, and the kernels that use it.
#include "backends/kernels/gemm_amx_model.h"

#include "backends/kernels/float_mode.h"
#include "backends/kernels/gemm_amx_tiles.h"

namespace twinrun {
namespace {

TWINRUN_INLINE float bf16_value(uint16_t x) {
  return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16);
}

}  // namespace

// Not inlined, and working on memory, so that no arithmetic moves out of the section between the
// two settings of the mode.
__attribute__((noinline)) void tile_dot_model(float* __restrict c, const uint16_t* a,
                                              const uint16_t* b) {
  const FloatMode saved = float_mode();
  set_float_mode(kPlainMode | kDenormalsAreZero);
  asm volatile("" ::: "memory");
  float b_even[256], b_odd[256];  // [pair][column]
  for (int i = 0; i < 256; ++i) {
    b_even[i] = bf16_value(b[2 * i]);
    b_odd[i] = bf16_value(b[2 * i + 1]);
  }
  for (int m = 0; m < 16; ++m, c += 16, a += 32) {
    for (int n = 0; n < 16; ++n) {
      float even = 0, odd = 0;
#pragma GCC unroll 16
      for (int pair = 0; pair < 16; ++pair) {
        even = fused(bf16_value(a[2 * pair]), b_even[pair * 16 + n], even);
        odd = fused(bf16_value(a[2 * pair + 1]), b_odd[pair * 16 + n], odd);
      }
      c[n] = c[n] + (even + odd);
    }
  }
  asm volatile("" ::: "memory");
  set_float_mode(saved);
}

const GemmKernels kGemmAmxModel = {
    .rows = 32, .lanes = 16, .packing = Packing::kPairs, .block = multiply_tiles<TileModel>};

}  // namespace twinrun
