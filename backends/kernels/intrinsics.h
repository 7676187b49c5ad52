// The AVX2 intrinsics: the compiler's own on x86-64; elsewhere SIMDe's, which give the same results
// by NEON, so that one source serves both. SIMDe's fused multiply-adds of four binary64 numbers
// round twice, and are replaced. No standard header, because files compiled for several instruction
// sets include this one.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>

namespace twinrun {

inline __m256d fused_multiply_add(__m256d a, __m256d b, __m256d c) {
  double x[4], y[4], sum[4];
  _mm256_storeu_pd(x, a);
  _mm256_storeu_pd(y, b);
  _mm256_storeu_pd(sum, c);
  for (int i = 0; i < 4; ++i) sum[i] = __builtin_fma(x[i], y[i], sum[i]);
  return _mm256_loadu_pd(sum);
}

}  // namespace twinrun

#undef _mm256_fmadd_pd
#define _mm256_fmadd_pd(a, b, c) ::twinrun::fused_multiply_add(a, b, c)
#endif
