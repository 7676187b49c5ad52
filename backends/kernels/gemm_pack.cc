// Operands on their way into tiles: bf16 terms, panels of B.
#include <cstring>

#include "backends/kernels/gemm.h"

namespace twinrun {
namespace {

// Nearest even on the upper 16 bits; exponent 0 becomes a signed zero, NaN canonical. On bits, so
// that it vectorises.
inline uint32_t bf16_bits(uint32_t u) {
  const uint32_t magnitude = u & 0x7FFFFFFFu;
  uint32_t r = (u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u;
  r = magnitude < 0x00800000u ? u & 0x80000000u : r;
  return magnitude > 0x7F800000u ? kCanonicalNaN : r;
}
inline float bf16_term(float x) { return from_bits(bf16_bits(to_bits(x))); }
// x - y under FTZ and DAZ; exact where it is not a NaN, as y is x rounded.
inline float rest(float x, float y) {
  const uint32_t u = to_bits(x);
  const float z = from_bits((u & 0x7F800000u) == 0 ? u & 0x80000000u : u);
  return z - y;
}

// 8 x 8 transposition: columns 0..7 of src (stride apart) at k..k+7 to dst[k][column].
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

// One panel of `width` columns of which `columns` exist, from columns that are not neighbours.
void pack_strided(const MatrixB& b, Term term, const float* src, int64_t length, int64_t columns,
                  int64_t width, float* out) {
  int64_t done = 0;  // columns
  if (b.k_stride == 1) {
    for (; done + 8 <= columns; done += 8) {
      const float* column = src + done * b.column_stride;
      int64_t k = 0;
      for (; k + 8 <= length; k += 8) {
        transpose8(column + k, b.column_stride, out + k * width + done, width);
      }
      for (; k < length; ++k) {
        for (int64_t j = 0; j < 8; ++j) out[k * width + done + j] = column[j * b.column_stride + k];
      }
    }
  }
  for (; done < columns; ++done) {
    const float* column = src + done * b.column_stride;
    for (int64_t k = 0; k < length; ++k) out[k * width + done] = column[k * b.k_stride];
  }
  if (term == Term::kWhole) return;
  for (int64_t k = 0; k < length; ++k) copy_term(term, out + k * width, out + k * width, columns);
}

}  // namespace

void copy_term(Term term, const float* src, float* dst, int64_t n) {
  switch (term) {
    case Term::kWhole:
      if (n == 32) {  // one panel row: no call
        for (int64_t i = 0; i < 32; ++i) dst[i] = src[i];
      } else if (n == 16) {
        for (int64_t i = 0; i < 16; ++i) dst[i] = src[i];
      } else {
        std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      }
      return;
    case Term::kFirst:
      for (int64_t i = 0; i < n; ++i) dst[i] = bf16_term(src[i]);
      return;
    case Term::kSecond:
      for (int64_t i = 0; i < n; ++i) dst[i] = bf16_term(rest(src[i], bf16_term(src[i])));
      return;
    case Term::kThird:
      for (int64_t i = 0; i < n; ++i) {
        const float r = rest(src[i], bf16_term(src[i]));
        dst[i] = bf16_term(rest(r, bf16_term(r)));
      }
      return;
  }
}

void pack_b(const GemmPlan& plan, const MatrixB& b, Term term, int64_t k0, int64_t k1, int64_t n0,
            int64_t n1, float* out) {
  const int64_t panel = plan.panel(), lanes = plan.kernels.lanes;
  const int64_t last = n0 + (n1 - n0 - 1) / panel * panel;  // where the last panel begins
  const int64_t last_width = n1 - last > lanes ? panel : lanes;
  for (int64_t k = k0; k < k1;) {
    const int64_t within = k % b.run;
    const int64_t length = std::min(b.run - within, k1 - k);
    const float* from = b.data + k / b.run * b.run_stride + within * b.k_stride;
    if (b.column_stride == 1) {
      // Along the rows of B: whole pages, one after the other.
      for (int64_t q = 0; q < length; ++q) {
        const float* row = from + q * b.k_stride;
        for (int64_t j = n0; j < n1; j += panel) {
          const int64_t width = j == last ? last_width : panel;
          float* to = out + (j - n0) * (k1 - k0) + (k - k0 + q) * width;
          copy_term(term, row + j, to, std::min(panel, n1 - j));
        }
      }
    } else {
      for (int64_t j = n0; j < n1; j += panel) {
        const int64_t width = j == last ? last_width : panel;
        float* to = out + (j - n0) * (k1 - k0) + (k - k0) * width;
        pack_strided(b, term, from + j * b.column_stride, length, std::min(panel, n1 - j), width,
                     to);
      }
    }
    k += length;
  }
  if (n1 - last == last_width) return;
  const float edge = plan.context.arithmetic.poison ? from_bits(kCanonicalNaN) : 0.0f;
  float* to = out + (last - n0) * (k1 - k0);
  for (int64_t k = 0; k < k1 - k0; ++k) {
    std::fill(to + k * last_width + (n1 - last), to + (k + 1) * last_width, edge);
  }
}

PackedB::PackedB(const GemmPlan& plan, const MatrixB& b, Term term, int64_t k, int64_t n0,
                 int64_t n1)
    : columns_(plan.packed_columns(n1 - n0)) {
  data_ = scratch<float>(Scratch::kPackedB, static_cast<size_t>(k * columns_));
  const int64_t panel = plan.panel();
  const int64_t blocks = (k + kBlockK - 1) / kBlockK;
  const int64_t span = panel * 8;  // columns per piece
  const int64_t spans = (n1 - n0 + span - 1) / span;
  for_pieces(plan.context, blocks * spans, k * columns_, [&](int64_t piece) {
    const int64_t k0 = piece / spans * kBlockK, k1 = std::min(k, k0 + kBlockK);
    const int64_t j0 = piece % spans * span, j1 = std::min(n1 - n0, j0 + span);
    pack_b(plan, b, term, k0, k1, n0 + j0, n0 + j1, data_ + k0 * columns_ + j0 * (k1 - k0));
  });
}

}  // namespace twinrun
