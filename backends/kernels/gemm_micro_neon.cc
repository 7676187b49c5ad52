// Tiles of 5 x 16 for NEON, of which two registers hold the 8 lanes of AVX2's. Of the 32 registers,
// 20 hold the sums of a tile; with 6 rows, g++ keeps some of them in memory.
//
// With denormals as zeros, a tile first computes with the processor's own flushing, which differs
// from the contract's only where a result is tiny (float_mode.h). The processor notes in FPSR.UFC
// that it flushed a result; then the tile is computed again, with `fused` where a result is zero.
#include "backends/kernels/float_mode.h"
#include "backends/kernels/gemm_micro_highway.h"

namespace twinrun {
namespace {

constexpr int kRows = 5, kColumns = 16;
constexpr uint64_t kUnderflow = 1 << 3;  // FPSR.UFC

using Neon = Pair<Highway>;

// The same numbers, flushed as the contract says.
struct Exact : Highway {
  static TWINRUN_INLINE reg fma(reg a, reg b, reg c) {
    const reg result = Highway::fma(a, b, c);
    if (hwy::HWY_NAMESPACE::AllFalse(Tag(), hwy::HWY_NAMESPACE::Eq(result, zero()))) return result;
    float x[kLanes], y[kLanes], z[kLanes];
    store(x, a);
    store(y, b);
    store(z, c);
    for (int i = 0; i < kLanes; ++i) z[i] = fused(x[i], y[i], z[i]);
    return load(z);
  }
};

uint64_t float_status() {
  uint64_t status;
  asm volatile("mrs %0, fpsr" : "=r"(status) : : "memory");
  return status;
}
void set_float_status(uint64_t status) { asm volatile("msr fpsr, %0" : : "r"(status) : "memory"); }

template <GemmTileFunction kFast, GemmTileFunction kExact>
void flushed_tile(const GemmTile& t) {
  if ((float_mode() & kDenormalsAreZero) == 0) return kFast(t);
  float before[kRows * kColumns];
  if (!t.start) {
    for (int r = 0; r < t.rows; ++r)
      __builtin_memcpy(before + r * kColumns, t.c + r * t.c_stride,
                       static_cast<size_t>(t.cols) * sizeof(float));
  }
  set_float_status(float_status() & ~kUnderflow);
  kFast(t);
  if ((float_status() & kUnderflow) == 0) return;
  if (!t.start) {
    for (int r = 0; r < t.rows; ++r)
      __builtin_memcpy(t.c + r * t.c_stride, before + r * kColumns,
                       static_cast<size_t>(t.cols) * sizeof(float));
  }
  kExact(t);
}

}  // namespace

// bf16 has two chains per output.
const GemmKernels kGemmNeon = {
    kRows, Neon::kLanes,
    flushed_tile<TileTable<Neon, kRows>::f32, TileTable<Pair<Exact>, kRows>::f32>,
    flushed_tile<TileTable<Neon, 3>::bf16_halves, TileTable<Pair<Exact>, 3>::bf16_halves>};

}  // namespace twinrun
