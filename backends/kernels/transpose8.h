// Transposes of 8 x 8 and 16 x 16 words in AVX2, for packing. No standard header, because files
// compiled for several instruction sets include this one.
#pragma once

#include <stdint.h>

#include "backends/kernels/intrinsics.h"

namespace twinrun {
namespace {

// dst[j * width + i] = src[i * stride + j].
inline void transpose8(const float* src, int64_t stride, float* dst, int64_t width) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(src + i * stride);
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(dst + i * width, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(dst + (i + 4) * width, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// dst[j * 16 + i] = src[i * 16 + j], for a whole AMX tile.
inline void transpose16(const uint32_t* src, void* dst) {
  for (int i = 0; i < 16; i += 8) {
    for (int j = 0; j < 16; j += 8) {
      transpose8(reinterpret_cast<const float*>(src + i * 16 + j), 16,
                 static_cast<float*>(dst) + j * 16 + i, 16);
    }
  }
}

}  // namespace
}  // namespace twinrun
