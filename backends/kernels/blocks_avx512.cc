// The functions of blocks_wide.h, compiled for AVX-512.
#include <immintrin.h>

#include "backends/kernels/bf16_bits.h"
#include "backends/kernels/blocks_wide.h"

namespace twinrun {
namespace {

template <typename F>
inline void each(const float* a, const float* b, float* out, int64_t n, F of) {
  TWINRUN_INDEPENDENT
  for (int64_t i = 0; i < n; ++i) {
    const float x = of(a[i], b[i]);
    out[i] = x != x ? __builtin_bit_cast(float, 0x7FC00000u) : x;
  }
}

void add(const float* a, const float* b, float* out, int64_t n) {
  each(a, b, out, n, [](float x, float y) { return x + y; });
}
void subtract(const float* a, const float* b, float* out, int64_t n) {
  each(a, b, out, n, [](float x, float y) { return x - y; });
}
void multiply(const float* a, const float* b, float* out, int64_t n) {
  each(a, b, out, n, [](float x, float y) { return x * y; });
}
void divide(const float* a, const float* b, float* out, int64_t n) {
  each(a, b, out, n, [](float x, float y) { return x / y; });
}

__mmask16 first(int64_t n) {
  return n >= 16 ? __mmask16{0xFFFF} : static_cast<__mmask16>((1u << n) - 1);
}
template <bool kFlush>
inline __m512 load(const float* x, __mmask16 lanes) {
  const __m512i u = _mm512_maskz_loadu_epi32(lanes, x);
  if (!kFlush) return _mm512_castsi512_ps(u);
  const __mmask16 normal = _mm512_test_epi32_mask(u, _mm512_set1_epi32(0x7F800000));
  const __m512i sign = _mm512_set1_epi32(INT32_MIN);
  return _mm512_castsi512_ps(_mm512_mask_and_epi32(u, static_cast<__mmask16>(~normal), u, sign));
}

// VMAXPS returns its second operand if both are zeros or one is NaN. So equal operands are joined
// by their bits, and NaNs are replaced.
template <bool kFlush, bool kLargest>
void extreme(const float* a, const float* b, float* out, int64_t n) {
  const __m512 nan = _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000));
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first(n - i);
    const __m512 x = load<kFlush>(a + i, lanes), y = load<kFlush>(b + i, lanes);
    const __mmask16 equal = _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ);
    __m512 m = kLargest ? _mm512_maskz_max_ps(lanes, x, y) : _mm512_maskz_min_ps(lanes, x, y);
    m = kLargest ? _mm512_mask_and_ps(m, equal, x, y) : _mm512_mask_or_ps(m, equal, x, y);
    m = _mm512_mask_mov_ps(m, _mm512_cmp_ps_mask(x, y, _CMP_UNORD_Q), nan);
    _mm512_mask_storeu_ps(out + i, lanes, m);
  }
}

template <bool kFlush, int kPredicate>
void compare(const float* a, const float* b, uint8_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first(n - i);
    const __mmask16 holds =
        _mm512_cmp_ps_mask(load<kFlush>(a + i, lanes), load<kFlush>(b + i, lanes), kPredicate);
    _mm_mask_storeu_epi8(out + i, lanes, _mm_maskz_set1_epi8(holds, 1));
  }
}

void select(const uint8_t* p, const uint32_t* a, const uint32_t* b, uint32_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    const __mmask16 lanes = first(n - i);
    const __m128i which = _mm_maskz_loadu_epi8(lanes, p + i);
    const __m512i otherwise = _mm512_maskz_loadu_epi32(lanes, b + i);
    _mm512_mask_storeu_epi32(
        out + i, lanes,
        _mm512_mask_loadu_epi32(otherwise, _mm_test_epi8_mask(which, which), a + i));
  }
}

template <bool kFlush>
constexpr WideArithmetic::Comparing comparing() {
  return {extreme<kFlush, true>,
          extreme<kFlush, false>,
          {compare<kFlush, _CMP_EQ_OQ>, compare<kFlush, _CMP_NEQ_UQ>, compare<kFlush, _CMP_LT_OQ>,
           compare<kFlush, _CMP_LE_OQ>, compare<kFlush, _CMP_GT_OQ>, compare<kFlush, _CMP_GE_OQ>}};
}

}  // namespace

const WideArithmetic kWideArithmetic = {
    add, subtract, multiply, divide, comparing<false>(), comparing<true>(), select};

}  // namespace twinrun
