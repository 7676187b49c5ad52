// The tile unit of gemm_amx_tiles.h in plain C++: an exact model of what AMX computes. Tests run it
// on every machine, and the self test of amx_probe.cc compares the hardware with it. Slow.
#pragma once

#include <stdint.h>

namespace twinrun {

// TDPBF16PS on 16 x 16 floats of c, 16 rows of 32 bf16 in a, 16 pairs x 16 columns in b: even k and
// odd k form a chain each, from +0, then c + (even + odd). Nearest even; denormal operands and
// results are zeros, whatever MXCSR says.
void tile_dot_model(float* c, const uint16_t* a, const uint16_t* b);

class TileModel {
 public:
  template <int T>
  void zero() {
    __builtin_memset(tiles_[T], 0, sizeof tiles_[T]);
  }
  template <int T>
  void load(const void* from, int64_t stride) {
    for (int r = 0; r < 16; ++r)
      __builtin_memcpy(tiles_[T] + r * 16, static_cast<const char*>(from) + r * stride, 64);
  }
  template <int T>
  void store(void* to, int64_t stride) {
    for (int r = 0; r < 16; ++r)
      __builtin_memcpy(static_cast<char*>(to) + r * stride, tiles_[T] + r * 16, 64);
  }
  template <int C, int A, int B>
  void dot() {
    dot_with<C, A, B>(tile_dot_model);
  }

 protected:
  template <int C, int A, int B, typename F>
  void dot_with(F&& f) {
    float c[256];
    uint16_t a[512], b[512];
    __builtin_memcpy(c, tiles_[C], sizeof c);
    __builtin_memcpy(a, tiles_[A], sizeof a);
    __builtin_memcpy(b, tiles_[B], sizeof b);
    f(c, a, b);
    __builtin_memcpy(tiles_[C], c, sizeof c);
  }

 private:
  alignas(64) uint32_t tiles_[8][256];
};

}  // namespace twinrun
