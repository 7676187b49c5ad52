// Tiles of 4 x 2 in plain C++. Tests compare them with the vector tiles, to show that all compute
// what the contract says.
#include "backends/kernels/float_mode.h"
#include "backends/kernels/gemm_micro_tiles.h"

namespace twinrun {
namespace {

struct Scalar {
  using reg = float;
  static constexpr int kLanes = 1;
  static TWINRUN_INLINE reg load(const float* p) { return *p; }
  static TWINRUN_INLINE reg load_some(const float* p, int) { return *p; }
  static TWINRUN_INLINE void store(float* p, reg x) { *p = x; }
  static TWINRUN_INLINE void store_some(float* p, reg x, int) { *p = x; }
  static TWINRUN_INLINE reg set1(const float* p) { return *p; }
  static TWINRUN_INLINE reg zero() { return 0.0f; }
  static TWINRUN_INLINE reg fma(reg a, reg b, reg c) { return fused(a, b, c); }
  static TWINRUN_INLINE reg add(reg a, reg b) { return a + b; }
  static TWINRUN_INLINE reg canonical(reg x) {
    return x != x ? __builtin_bit_cast(float, 0x7FC00000u) : x;
  }
};

}  // namespace

const GemmKernels kGemmScalar = {4, 1, TileTable<Scalar, 4>::f32, TileTable<Scalar, 4>::bf16};

}  // namespace twinrun
