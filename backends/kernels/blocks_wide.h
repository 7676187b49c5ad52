// Elementwise arithmetic on blocks of binary32 by AVX-512: blocks.cc takes these where vectors_of_512(). Private to it.
#pragma once

#include <stdint.h>

namespace twinrun {

// out[i] = a[i] op b[i], NaNs canonical; out overlaps neither. Flushing is the caller's MXCSR.
struct WideArithmetic {
  using Binary = void (*)(const float* a, const float* b, float* out, int64_t n);
  Binary add, subtract, multiply, divide;
};
extern const WideArithmetic kWideArithmetic;

}  // namespace twinrun
