// The elementwise kernels for one block. binary32 goes straight from operand to result. bf16 goes
// in chunks of 256 through binary32 buffers in L1: widen, compute, round once. Under `flush` the
// caller has set FTZ and DAZ, which is enough for + - * /; maximum, minimum, comparisons and unary
// functions flush their operands themselves. select, negate and abs do not flush.
#include "backends/kernels/blocks.h"

#include <cstring>
#include <type_traits>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/elementary.h"
#include "backends/kernels/vector_f32.h"

namespace twinrun {
namespace {

constexpr int64_t kChunk = kElementaryChunk;

struct Add {
  template <bool>
  static float of(float a, float b) {
    return a + b;
  }
};
struct Subtract {
  template <bool>
  static float of(float a, float b) {
    return a - b;
  }
};
struct Multiply {
  template <bool>
  static float of(float a, float b) {
    return multiplied(a, b);
  }
};
struct Divide {
  template <bool>
  static float of(float a, float b) {
    return a / b;
  }
};
// A NaN operand gives a NaN. Equal numbers differ in bits only if they are zeros of different sign.
struct Maximum {
  template <bool kFlush>
  static float of(float x, float y) {
    const float a = flushed<kFlush>(x), b = flushed<kFlush>(y);
    const float larger = a > b ? a : b;
    const float same = from_bits(to_bits(a) & to_bits(b));
    const float m = a == b ? same : larger;
    return a != a ? a : m;
  }
  static __m256 of8(__m256 a, __m256 b) { return maximum8(a, b); }
};
struct Minimum {
  template <bool kFlush>
  static float of(float x, float y) {
    const float a = flushed<kFlush>(x), b = flushed<kFlush>(y);
    const float smaller = a < b ? a : b;
    const float same = from_bits(to_bits(a) | to_bits(b));
    const float m = a == b ? same : smaller;
    return a != a ? a : m;
  }
  static __m256 of8(__m256 a, __m256 b) { return minimum8(a, b); }
};

// The operand's elements as binary32, in `buffer`; the operand itself where nothing has to change.
template <typename T, bool kFlushInput>
inline const float* widen(const typename T::type* x, float* buffer, int64_t n) {
  if constexpr (std::is_same_v<T, F32> && !kFlushInput) {
    return x;
  } else {
    for (int64_t i = 0; i < n; ++i) buffer[i] = flushed<kFlushInput>(T::load(x[i]));
    return buffer;
  }
}

template <typename T, bool kFlush, typename F>
void binary(const BlockArgs& g) {
  using E = typename T::type;
  const E *a = static_cast<const E*>(g.in[0]), *b = static_cast<const E*>(g.in[1]);
  E* out = static_cast<E*>(g.out);
  if constexpr (std::is_same_v<T, F32>) {
    int64_t i = 0;
    if constexpr (requires { F::of8; }) {
      for (; i + 8 <= g.n; i += 8) {
        const __m256 x = flush8<kFlush>(_mm256_loadu_ps(a + i));
        const __m256 y = flush8<kFlush>(_mm256_loadu_ps(b + i));
        _mm256_storeu_ps(out + i, canonical8(F::of8(x, y)));
      }
    }
    for (; i < g.n; ++i) out[i] = canonical(F::template of<kFlush>(a[i], b[i]));
  } else {
    float ba[kChunk], bb[kChunk], r[kChunk];
    for (int64_t i = 0; i < g.n; i += kChunk) {
      const int64_t n = std::min(kChunk, g.n - i);
      widen<T, kFlush>(a + i, ba, n);
      widen<T, kFlush>(b + i, bb, n);
      for (int64_t q = 0; q < n; ++q) r[q] = F::template of<kFlush>(ba[q], bb[q]);
      for (int64_t q = 0; q < n; ++q) out[i + q] = T::template store<kFlush>(r[q]);
    }
  }
}

using ChunkFunction = void (*)(const float* a, float* r, int64_t n);

void sqrt_chunk(const float* a, float* r, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(r + i, _mm256_sqrt_ps(_mm256_loadu_ps(a + i)));
  for (; i < n; ++i) _mm_store_ss(r + i, _mm_sqrt_ss(_mm_load_ss(a + i)));
}
void rsqrt_chunk(const float* a, float* r, int64_t n) {
  float root[kChunk];
  sqrt_chunk(a, root, n);
  for (int64_t i = 0; i < n; ++i) r[i] = 1.0f / root[i];
}
void exp_chunk(const float* a, float* r, int64_t n) { exp_array(a, r, n); }
void log_chunk(const float* a, float* r, int64_t n) { log_array(a, r, n); }
void tanh_chunk(const float* a, float* r, int64_t n) { tanh_array(a, r, n); }
void erf_chunk(const float* a, float* r, int64_t n) { erf_array(a, r, n); }
void log1p_chunk(const float* a, float* r, int64_t n) { log1p_array(a, r, n); }
void sin_chunk(const float* a, float* r, int64_t n) { sin_array(a, r, n); }
void cos_chunk(const float* a, float* r, int64_t n) { cos_array(a, r, n); }
void logistic_chunk(const float* a, float* r, int64_t n) {
  float e[kChunk] = {};
  for (int64_t i = 0; i < n; ++i) e[i] = -a[i];
  exp_array(e, e, n);
  for (int64_t i = 0; i < n; ++i) r[i] = 1.0f / (1.0f + e[i]);
}

template <typename T, bool kFlush, ChunkFunction kFunction>
void unary(const BlockArgs& g) {
  using E = typename T::type;
  const E* a = static_cast<const E*>(g.in[0]);
  E* out = static_cast<E*>(g.out);
  float ba[kChunk], r[kChunk];
  for (int64_t i = 0; i < g.n; i += kChunk) {
    const int64_t n = std::min(kChunk, g.n - i);
    kFunction(widen<T, kFlush>(a + i, ba, n), r, n);
    for (int64_t q = 0; q < n; ++q) out[i + q] = T::template store<kFlush>(r[q]);
  }
}

template <OpKind kKind>
void integer(const BlockArgs& g) {
  const auto *a = static_cast<const int32_t*>(g.in[0]), *b = static_cast<const int32_t*>(g.in[1]);
  auto* out = static_cast<int32_t*>(g.out);
  for (int64_t i = 0; i < g.n; ++i) {
    const auto x = static_cast<uint32_t>(a[i]), y = static_cast<uint32_t>(b[i]);
    if constexpr (kKind == OpKind::kAdd) out[i] = static_cast<int32_t>(x + y);
    if constexpr (kKind == OpKind::kSubtract) out[i] = static_cast<int32_t>(x - y);
    if constexpr (kKind == OpKind::kMultiply) out[i] = static_cast<int32_t>(x * y);
    if constexpr (kKind == OpKind::kMaximum) out[i] = std::max(a[i], b[i]);
    if constexpr (kKind == OpKind::kMinimum) out[i] = std::min(a[i], b[i]);
    if constexpr (kKind == OpKind::kAnd) out[i] = a[i] & b[i];
    if constexpr (kKind == OpKind::kOr) out[i] = a[i] | b[i];
    if constexpr (kKind == OpKind::kXor) out[i] = a[i] ^ b[i];
    if constexpr (kKind == OpKind::kShiftLeft) out[i] = y < 32 ? static_cast<int32_t>(x << y) : 0;
    if constexpr (kKind == OpKind::kShiftRightLogical)
      out[i] = y < 32 ? static_cast<int32_t>(x >> y) : 0;
    if constexpr (kKind == OpKind::kShiftRightArithmetic) out[i] = a[i] >> (y < 32 ? y : 31);
    // -2^31 / -1 has no quotient in i32, and the processor traps.
    if constexpr (kKind == OpKind::kDivide)
      out[i] = b[i] == 0 ? -1 : b[i] == -1 ? static_cast<int32_t>(0u - x) : a[i] / b[i];
    if constexpr (kKind == OpKind::kRemainder)
      out[i] = b[i] == 0 ? a[i] : b[i] == -1 ? 0 : a[i] % b[i];
  }
}
// For ops that no program contains: writes zeros.
void zeros(const BlockArgs& g) { std::memset(g.out, 0, static_cast<size_t>(g.n) * 4); }

// Copies bits as integers. A number is a NaN in both types, so one direction serves for both.
void bitcast(const BlockArgs& g) {
  const auto* a = static_cast<const uint32_t*>(g.in[0]);
  auto* out = static_cast<uint32_t*>(g.out);
  for (int64_t i = 0; i < g.n; ++i)
    out[i] = (a[i] & 0x7FFFFFFFu) > 0x7F800000u ? kCanonicalNaN : a[i];
}

template <CompareKind kKind, typename V>
inline bool holds(V a, V b) {
  if constexpr (kKind == CompareKind::kEq) return a == b;
  if constexpr (kKind == CompareKind::kNe) return a != b;
  if constexpr (kKind == CompareKind::kLt) return a < b;
  if constexpr (kKind == CompareKind::kLe) return a <= b;
  if constexpr (kKind == CompareKind::kGt) return a > b;
  return a >= b;
}
template <CompareKind kKind, typename V>
void compare_exact(const BlockArgs& g) {
  const V *a = static_cast<const V*>(g.in[0]), *b = static_cast<const V*>(g.in[1]);
  auto* out = static_cast<uint8_t*>(g.out);
  for (int64_t i = 0; i < g.n; ++i) out[i] = holds<kKind>(a[i], b[i]);
}
constexpr int predicate(CompareKind kind) {
  constexpr int kOf[] = {_CMP_EQ_OQ, _CMP_NEQ_UQ, _CMP_LT_OQ, _CMP_LE_OQ, _CMP_GT_OQ, _CMP_GE_OQ};
  return kOf[static_cast<int>(kind)];
}
template <CompareKind kKind, typename T, bool kFlush>
void compare_float(const BlockArgs& g) {
  using E = typename T::type;
  const E *a = static_cast<const E*>(g.in[0]), *b = static_cast<const E*>(g.in[1]);
  auto* out = static_cast<uint8_t*>(g.out);
  int64_t i = 0;
  if constexpr (std::is_same_v<T, F32>) {
    const auto holds8 = [&](int64_t at) {
      return _mm256_cmp_ps(flush8<kFlush>(_mm256_loadu_ps(a + at)),
                           flush8<kFlush>(_mm256_loadu_ps(b + at)), predicate(kKind));
    };
    for (; i + 32 <= g.n; i += 32) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i),
                          mask_bytes(holds8(i), holds8(i + 8), holds8(i + 16), holds8(i + 24)));
    }
  }
  for (; i < g.n; ++i) {
    out[i] = holds<kKind>(flushed<kFlush>(T::load(a[i])), flushed<kFlush>(T::load(b[i])));
  }
}

// Copies bits as integer types, which FTZ and DAZ do not affect.
template <typename E>
void select(const BlockArgs& g) {
  const auto* p = static_cast<const uint8_t*>(g.in[0]);
  const E *a = static_cast<const E*>(g.in[1]), *b = static_cast<const E*>(g.in[2]);
  E* out = static_cast<E*>(g.out);
  int64_t i = 0;
  if constexpr (sizeof(E) == 4) {
    const auto load = [](const E* x) { return _mm256_loadu_ps(reinterpret_cast<const float*>(x)); };
    for (; i + 8 <= g.n; i += 8) {
      _mm256_storeu_ps(reinterpret_cast<float*>(out + i),
                       _mm256_blendv_ps(load(b + i), load(a + i), byte_mask8(p + i)));
    }
  }
  for (; i < g.n; ++i) out[i] = p[i] != 0 ? a[i] : b[i];
}
// negate flips the sign bit, abs clears it; NaNs become canonical.
template <bool kNegate, typename E, E kTop, E kInfinity, E kNaN>
void sign(const BlockArgs& g) {
  const E* a = static_cast<const E*>(g.in[0]);
  E* out = static_cast<E*>(g.out);
  for (int64_t i = 0; i < g.n; ++i) {
    const auto magnitude = static_cast<E>(a[i] & static_cast<E>(~kTop));
    const auto moved = kNegate ? static_cast<E>(a[i] ^ kTop) : magnitude;
    out[i] = magnitude > kInfinity ? kNaN : moved;
  }
}
template <bool kNegate>
void sign_i32(const BlockArgs& g) {  // wraps
  const auto* a = static_cast<const uint32_t*>(g.in[0]);
  auto* out = static_cast<uint32_t*>(g.out);
  for (int64_t i = 0; i < g.n; ++i) out[i] = kNegate || (a[i] >> 31) != 0 ? 0u - a[i] : a[i];
}

template <CompareKind kKind>
BlockKernel compare_of(DType dtype, bool flush) {
  if (dtype == DType::kI32) return compare_exact<kKind, int32_t>;
  if (dtype == DType::kPred) return compare_exact<kKind, uint8_t>;
  if (dtype == DType::kBF16) {
    return flush ? compare_float<kKind, BF16, true> : compare_float<kKind, BF16, false>;
  }
  return flush ? compare_float<kKind, F32, true> : compare_float<kKind, F32, false>;
}
BlockKernel compare(CompareKind kind, DType dtype, bool flush) {
  switch (kind) {
    case CompareKind::kEq:
      return compare_of<CompareKind::kEq>(dtype, flush);
    case CompareKind::kNe:
      return compare_of<CompareKind::kNe>(dtype, flush);
    case CompareKind::kLt:
      return compare_of<CompareKind::kLt>(dtype, flush);
    case CompareKind::kLe:
      return compare_of<CompareKind::kLe>(dtype, flush);
    case CompareKind::kGt:
      return compare_of<CompareKind::kGt>(dtype, flush);
    default:
      return compare_of<CompareKind::kGe>(dtype, flush);
  }
}

BlockKernel select_of(DType dtype) {
  switch (size_of(dtype)) {
    case 1:
      return select<uint8_t>;
    case 2:
      return select<uint16_t>;
    case 4:
      return select<uint32_t>;
    default:
      return select<uint64_t>;
  }
}

template <bool kNegate>
BlockKernel sign_of(DType dtype) {
  if (dtype == DType::kI32) return sign_i32<kNegate>;
  if (dtype == DType::kBF16) {
    return sign<kNegate, uint16_t, uint16_t{0x8000}, uint16_t{0x7F80}, kCanonicalNaN16>;
  }
  return sign<kNegate, uint32_t, 0x80000000u, 0x7F800000u, kCanonicalNaN>;
}

BlockKernel integer_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAdd:
      return integer<OpKind::kAdd>;
    case OpKind::kSubtract:
      return integer<OpKind::kSubtract>;
    case OpKind::kMultiply:
      return integer<OpKind::kMultiply>;
    case OpKind::kMaximum:
      return integer<OpKind::kMaximum>;
    case OpKind::kMinimum:
      return integer<OpKind::kMinimum>;
    case OpKind::kDivide:
      return integer<OpKind::kDivide>;
    case OpKind::kRemainder:
      return integer<OpKind::kRemainder>;
    case OpKind::kAnd:
      return integer<OpKind::kAnd>;
    case OpKind::kOr:
      return integer<OpKind::kOr>;
    case OpKind::kXor:
      return integer<OpKind::kXor>;
    case OpKind::kShiftLeft:
      return integer<OpKind::kShiftLeft>;
    case OpKind::kShiftRightLogical:
      return integer<OpKind::kShiftRightLogical>;
    case OpKind::kShiftRightArithmetic:
      return integer<OpKind::kShiftRightArithmetic>;
    default:
      return zeros;
  }
}

template <typename T, bool kFlush>
BlockKernel float_of(OpKind kind) {
  switch (kind) {
    case OpKind::kAdd:
      return binary<T, kFlush, Add>;
    case OpKind::kSubtract:
      return binary<T, kFlush, Subtract>;
    case OpKind::kMultiply:
      return binary<T, kFlush, Multiply>;
    case OpKind::kDivide:
      return binary<T, kFlush, Divide>;
    case OpKind::kMaximum:
      return binary<T, kFlush, Maximum>;
    case OpKind::kMinimum:
      return binary<T, kFlush, Minimum>;
    case OpKind::kSqrt:
      return unary<T, kFlush, sqrt_chunk>;
    case OpKind::kRsqrt:
      return unary<T, kFlush, rsqrt_chunk>;
    case OpKind::kExponential:
      return unary<T, kFlush, exp_chunk>;
    case OpKind::kLog:
      return unary<T, kFlush, log_chunk>;
    case OpKind::kTanh:
      return unary<T, kFlush, tanh_chunk>;
    case OpKind::kLogistic:
      return unary<T, kFlush, logistic_chunk>;
    case OpKind::kErf:
      return unary<T, kFlush, erf_chunk>;
    case OpKind::kLog1p:
      return unary<T, kFlush, log1p_chunk>;
    case OpKind::kSine:
      return unary<T, kFlush, sin_chunk>;
    case OpKind::kCosine:
      return unary<T, kFlush, cos_chunk>;
    default:
      return nullptr;
  }
}

}  // namespace

BlockKernel block_kernel(const Op& op, DType operand, bool flush) {
#if defined(__x86_64__)
  if (operand == DType::kF32 && vectors_of_512()) {
    if (const BlockKernel kernel = wide_kernel(op, flush)) return kernel;
  }
#endif
  switch (op.kind) {
    case OpKind::kCompare:
      return compare(op.attrs.compare, operand, flush);
    case OpKind::kConvert:
      return convert_kernel(operand, op.type.dtype, flush);
    case OpKind::kSelect:
      return select_of(operand);
    case OpKind::kNegate:
      return sign_of<true>(operand);
    case OpKind::kAbs:
      return sign_of<false>(operand);
    case OpKind::kBitcastConvert:
      return bitcast;
    default:
      break;
  }
  if (operand == DType::kI32) return integer_of(op.kind);
  BlockKernel kernel = nullptr;
  dispatch_float(operand, flush, [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
    kernel = float_of<T, kFlush>(op.kind);
  });
  return kernel;
}

int64_t block_cost(OpKind kind) { return is_elementary(kind) ? 12 : 1; }

}  // namespace twinrun
