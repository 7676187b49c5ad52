// Elementwise ops on blocks of binary32 in AVX-512. Compiled in blocks_avx512.cc; blocks_wide.cc
// makes block kernels (blocks.h) of them.
#pragma once

#include <stdint.h>

namespace twinrun {

// out[i] = a[i] op b[i], NaNs canonical; out overlaps neither. For + - * / the caller's MXCSR
// flushes. Maximum, minimum and compare have two forms: `flushed` flushes its operands itself,
// `kept` does not.
struct WideArithmetic {
  using Binary = void (*)(const float* a, const float* b, float* out, int64_t n);
  // out[i] is 1 where the comparison holds, else 0. Comparing::compare is in the order of
  // CompareKind.
  using Compare = void (*)(const float* a, const float* b, uint8_t* out, int64_t n);
  struct Comparing {
    Binary maximum, minimum;
    Compare compare[6];
  };
  Binary add, subtract, multiply, divide;
  Comparing kept, flushed;
  // Copies bits: out[i] = p[i] != 0 ? a[i] : b[i].
  void (*select)(const uint8_t* p, const uint32_t* a, const uint32_t* b, uint32_t* out, int64_t n);
};
extern const WideArithmetic kWideArithmetic;

}  // namespace twinrun
