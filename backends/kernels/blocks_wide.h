// Elementwise ops on blocks of binary32 by AVX-512: blocks_wide.cc makes kernels of them.
#pragma once

#include <stdint.h>

namespace twinrun {

// out[i] = a[i] op b[i], NaNs canonical; out overlaps neither. Of + - * / flushing is the caller's MXCSR; what compares has a
// form that flushes its operands itself.
struct WideArithmetic {
  using Binary = void (*)(const float* a, const float* b, float* out, int64_t n);
  // 1 where it holds, else 0; in the order of CompareKind.
  using Compare = void (*)(const float* a, const float* b, uint8_t* out, int64_t n);
  struct Comparing {
    Binary maximum, minimum;
    Compare compare[6];
  };
  Binary add, subtract, multiply, divide;
  Comparing kept, flushed;
  // Bits are moved: out[i] = p[i] != 0 ? a[i] : b[i].
  void (*select)(const uint8_t* p, const uint32_t* a, const uint32_t* b, uint32_t* out, int64_t n);
};
extern const WideArithmetic kWideArithmetic;

}  // namespace twinrun
