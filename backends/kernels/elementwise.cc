// One rounding per node. Chunks of 256 elements go through binary32 buffers in L1, so that bf16
// tensors and f32 tensors share one code path: widen, compute, round once.
#include <cmath>
#include <cstring>
#include <limits>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/elementary.h"
#include "backends/kernels/kernel_list.h"

namespace twinrun {
namespace {

constexpr int64_t kChunk = kElementaryChunk;
using ChunkFunction = void (*)(const float* a, const float* b, float* r, int64_t n);

template <typename F>
inline void each(float* r, int64_t n, F&& f) {
  for (int64_t i = 0; i < n; ++i) r[i] = f(i);
}

void add_chunk(const float* a, const float* b, float* r, int64_t n) {
  each(r, n, [=](int64_t i) { return a[i] + b[i]; });
}
void subtract_chunk(const float* a, const float* b, float* r, int64_t n) {
  each(r, n, [=](int64_t i) { return a[i] - b[i]; });
}
void multiply_chunk(const float* a, const float* b, float* r, int64_t n) {
  each(r, n, [=](int64_t i) { return a[i] * b[i]; });
}
void divide_chunk(const float* a, const float* b, float* r, int64_t n) {
  each(r, n, [=](int64_t i) { return a[i] / b[i]; });
}
// NaN + NaN keeps a NaN; equal numbers differ in bits only as zeros do.
void maximum_chunk(const float* a, const float* b, float* r, int64_t n) {
  each(r, n, [=](int64_t i) {
    const float larger = a[i] > b[i] ? a[i] : b[i];
    const float same = from_bits(to_bits(a[i]) & to_bits(b[i]));
    const float m = a[i] == b[i] ? same : larger;
    return a[i] != a[i] ? a[i] : m;
  });
}
void minimum_chunk(const float* a, const float* b, float* r, int64_t n) {
  each(r, n, [=](int64_t i) {
    const float smaller = a[i] < b[i] ? a[i] : b[i];
    const float same = from_bits(to_bits(a[i]) | to_bits(b[i]));
    const float m = a[i] == b[i] ? same : smaller;
    return a[i] != a[i] ? a[i] : m;
  });
}
void sqrt_chunk(const float* a, const float*, float* r, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(r + i, _mm256_sqrt_ps(_mm256_loadu_ps(a + i)));
  for (; i < n; ++i) _mm_store_ss(r + i, _mm_sqrt_ss(_mm_load_ss(a + i)));
}
void rsqrt_chunk(const float* a, const float* b, float* r, int64_t n) {
  float root[kChunk];
  sqrt_chunk(a, b, root, n);
  each(r, n, [&](int64_t i) { return 1.0f / root[i]; });
}
void exp_chunk(const float* a, const float*, float* r, int64_t n) { exp_array(a, r, n); }
void log_chunk(const float* a, const float*, float* r, int64_t n) { log_array(a, r, n); }
void tanh_chunk(const float* a, const float*, float* r, int64_t n) { tanh_array(a, r, n); }
void logistic_chunk(const float* a, const float*, float* r, int64_t n) {
  float e[kChunk] = {};
  each(e, n, [=](int64_t i) { return -a[i]; });
  exp_array(e, e, n);
  each(r, n, [&](int64_t i) { return 1.0f / (1.0f + e[i]); });
}

ChunkFunction chunk_function(OpKind kind) {
  switch (kind) {
    case OpKind::kAdd:
      return add_chunk;
    case OpKind::kSubtract:
      return subtract_chunk;
    case OpKind::kMultiply:
      return multiply_chunk;
    case OpKind::kDivide:
      return divide_chunk;
    case OpKind::kMaximum:
      return maximum_chunk;
    case OpKind::kMinimum:
      return minimum_chunk;
    case OpKind::kSqrt:
      return sqrt_chunk;
    case OpKind::kRsqrt:
      return rsqrt_chunk;
    case OpKind::kExponential:
      return exp_chunk;
    case OpKind::kLog:
      return log_chunk;
    case OpKind::kTanh:
      return tanh_chunk;
    default:
      return logistic_chunk;
  }
}

// Work per element, in units of a stored element.
int64_t cost_of(OpKind kind) {
  switch (kind) {
    case OpKind::kExponential:
    case OpKind::kLog:
    case OpKind::kTanh:
    case OpKind::kLogistic:
      return 12;
    default:
      return 1;
  }
}

// Operand elements as binary32; in place where nothing has to change.
template <typename T, bool kFlushInput>
const float* widen(const typename T::type* x, float* buffer, int64_t n) {
  if constexpr (std::is_same_v<T, F32> && !kFlushInput) {
    return x;
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const float v = T::load(x[i]);
      buffer[i] = kFlushInput ? flush(v) : v;
    }
    return buffer;
  }
}

template <typename T, bool kFlush>
void run_float(const KernelContext& context, OpKind kind, const Tensor& a, const Tensor& b,
               Tensor& output) {
  using E = typename T::type;
  const ChunkFunction function = chunk_function(kind);
  const E *pa = a.as<E>().data(), *pb = b.as<E>().data();
  E* out = output.as<E>().data();
  for_ranges(context, output.elements(), cost_of(kind), [&](int64_t begin, int64_t end) {
    const FlushScope scope(kFlush);
    float ba[kChunk], bb[kChunk], r[kChunk];
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t n = std::min(kChunk, end - i);
      const float* x = widen<T, kFlush>(pa + i, ba, n);
      const float* y = pa == pb ? x : widen<T, kFlush>(pb + i, bb, n);
      function(x, y, r, n);
      for (int64_t q = 0; q < n; ++q) out[i + q] = T::template store<kFlush>(r[q]);
    }
  });
}

void run_i32(const KernelContext& context, OpKind kind, const Tensor& a, const Tensor& b,
             Tensor& output) {
  const int32_t *pa = a.as<int32_t>().data(), *pb = b.as<int32_t>().data();
  int32_t* out = output.as<int32_t>().data();
  for_ranges(context, output.elements(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto x = static_cast<uint32_t>(pa[i]), y = static_cast<uint32_t>(pb[i]);
      switch (kind) {
        case OpKind::kAdd:
          out[i] = static_cast<int32_t>(x + y);
          break;
        case OpKind::kSubtract:
          out[i] = static_cast<int32_t>(x - y);
          break;
        case OpKind::kMultiply:
          out[i] = static_cast<int32_t>(x * y);
          break;
        case OpKind::kMaximum:
          out[i] = std::max(pa[i], pb[i]);
          break;
        case OpKind::kMinimum:
          out[i] = std::min(pa[i], pb[i]);
          break;
        default:
          out[i] = 0;
          break;
      }
    }
  });
}

template <typename V>
void compare_chunk(CompareKind kind, const V* a, const V* b, uint8_t* r, int64_t n) {
  switch (kind) {
    case CompareKind::kEq:
      for (int64_t i = 0; i < n; ++i) r[i] = a[i] == b[i];
      return;
    case CompareKind::kNe:
      for (int64_t i = 0; i < n; ++i) r[i] = a[i] != b[i];
      return;
    case CompareKind::kLt:
      for (int64_t i = 0; i < n; ++i) r[i] = a[i] < b[i];
      return;
    case CompareKind::kLe:
      for (int64_t i = 0; i < n; ++i) r[i] = a[i] <= b[i];
      return;
    case CompareKind::kGt:
      for (int64_t i = 0; i < n; ++i) r[i] = a[i] > b[i];
      return;
    case CompareKind::kGe:
      for (int64_t i = 0; i < n; ++i) r[i] = a[i] >= b[i];
      return;
  }
}

void run_compare(const KernelContext& context, const Op& op, const Tensor& a, const Tensor& b,
                 Tensor& output) {
  const CompareKind kind = op.attrs.compare;
  uint8_t* out = output.as<uint8_t>().data();
  const auto exact = [&]<typename V>(V) {
    for_ranges(context, output.elements(), 1, [&](int64_t begin, int64_t end) {
      compare_chunk(kind, a.as<V>().data() + begin, b.as<V>().data() + begin, out + begin,
                    end - begin);
    });
  };
  if (a.dtype() == DType::kI32) return exact(int32_t{});
  if (a.dtype() == DType::kPred) return exact(uint8_t{});
  dispatch_float(a.dtype(), context.arithmetic.flush,
                 [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
                   using E = typename T::type;
                   for_ranges(context, output.elements(), 1, [&](int64_t begin, int64_t end) {
                     float ba[kChunk], bb[kChunk];
                     for (int64_t i = begin; i < end; i += kChunk) {
                       const int64_t n = std::min(kChunk, end - i);
                       compare_chunk(kind, widen<T, kFlush>(a.as<E>().data() + i, ba, n),
                                     widen<T, kFlush>(b.as<E>().data() + i, bb, n), out + i, n);
                     }
                   });
                 });
}

int32_t saturated(float x) {
  if (x != x) return 0;
  if (x >= 0x1p31f) return std::numeric_limits<int32_t>::max();
  if (x < -0x1p31f) return std::numeric_limits<int32_t>::min();
  return static_cast<int32_t>(x);
}

}  // namespace

void run_elementwise(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output) {
  const Tensor &a = inputs[0], &b = inputs[inputs.size() > 1 ? 1 : 0];
  if (op.kind == OpKind::kCompare) return run_compare(context, op, a, b, output);
  if (a.dtype() == DType::kI32) return run_i32(context, op.kind, a, b, output);
  dispatch_float(a.dtype(), context.arithmetic.flush,
                 [&]<typename T, bool kFlush>(T, std::bool_constant<kFlush>) {
                   run_float<T, kFlush>(context, op.kind, a, b, output);
                 });
}

void run_convert(const KernelContext& context, const Op&, Inputs inputs, Tensor& output) {
  const Tensor& x = inputs[0];
  const bool flushes = context.arithmetic.flush;
  const DType from = x.dtype(), to = output.dtype();
  if (from == to && (from == DType::kI32 || from == DType::kPred)) {
    std::memcpy(output.raw(), x.raw(), x.bytes());
    return;
  }
  for_ranges(context, x.elements(), 1, [&](int64_t begin, int64_t end) {
    float buffer[kChunk];
    for (int64_t i = begin; i < end; i += kChunk) {
      const int64_t n = std::min(kChunk, end - i);
      const auto fill = [&](auto&& value) {
        for (int64_t q = 0; q < n; ++q) buffer[q] = value(i + q);
      };
      if (from == DType::kI32 && to == DType::kPred) {
        for (int64_t q = i; q < i + n; ++q)
          output.as<uint8_t>().data()[q] = x.as<int32_t>().data()[q] != 0;
        continue;
      }
      if (from == DType::kPred && to == DType::kI32) {
        for (int64_t q = i; q < i + n; ++q)
          output.as<int32_t>().data()[q] = x.as<uint8_t>().data()[q] != 0;
        continue;
      }
      switch (from) {
        case DType::kI32:
          fill([p = x.as<int32_t>().data()](int64_t q) { return static_cast<float>(p[q]); });
          break;
        case DType::kPred:
          fill([p = x.as<uint8_t>().data()](int64_t q) { return p[q] != 0 ? 1.0f : 0.0f; });
          break;
        case DType::kBF16:
          fill([p = x.as<uint16_t>().data()](int64_t q) { return bf16_to_f32(p[q]); });
          break;
        default:
          fill([p = x.as<float>().data()](int64_t q) { return p[q]; });
          break;
      }
      if (flushes) fill([&](int64_t q) { return flush(buffer[q - i]); });
      switch (to) {
        case DType::kI32:
          for (int64_t q = 0; q < n; ++q) output.as<int32_t>().data()[i + q] = saturated(buffer[q]);
          break;
        case DType::kPred:
          for (int64_t q = 0; q < n; ++q) output.as<uint8_t>().data()[i + q] = buffer[q] != 0.0f;
          break;
        case DType::kBF16:
          for (int64_t q = 0; q < n; ++q)
            output.as<uint16_t>().data()[i + q] = bf16_round(buffer[q]);
          break;
        default:
          for (int64_t q = 0; q < n; ++q) output.as<float>().data()[i + q] = canonical(buffer[q]);
          break;
      }
    }
  });
}

}  // namespace twinrun
