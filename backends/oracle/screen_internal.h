// Shared by the files of the screen. Nothing here uses backends/kernels: a check that ran the
// subject's own loops would repeat its faults.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "backends/oracle/rounding.h"
#include "backends/oracle/screen.h"
#include "backends/oracle/screen_vector.h"
#include "program/base/bits.h"

namespace twinrun::screen {

struct Call {
  const Capabilities& declared;
  const Op& op;
  std::span<const Tensor> inputs;
  const Tensor& output;
  ThreadPool* pool;
  unsigned unrounded = 0;  // bit i: operand i may be a product before its rounding
};

bool source(const Call& call);  // constant, iota, rng_uniform
bool move(const Call& call);    // broadcast, reshape, transpose, select, negate, abs
bool elementwise(const Call& call);
bool reduce(const Call& call);
bool scatter_add(const Call& call);
bool window(const Call& call);  // reduce_window, select_and_scatter, avg_pool_grad
bool all_reduce(const Call& call);
// The largest |checksum - expected checksum| / radius of the rows of a dot or convolution.
double worst_row(const Call& call);

using oracle::kInfinity;
using oracle::kMinNormal;
using oracle::kUnit;
// Sums whose terms reach this size may overflow binary32 on the way; they are not screened.
inline constexpr double kMayOverflow = 0x1p127;

inline bool finite(double x) { return std::fabs(x) < kInfinity; }

// The error of a sum whose terms pass through `depth` rounded additions each, in units of the sum
// of their sizes. For short sums it is the worst case, for long ones eight standard deviations of
// independent roundings.
inline double sum_error(double depth) { return kUnit * std::min(depth, 8 * std::sqrt(depth)); }

// True if ok(piece) holds for every piece; skips the rest once one fails.
template <typename F>
bool all_pieces(ThreadPool* pool, int64_t pieces, F ok) {
  std::atomic<bool> good{true};
  auto run = [&](int64_t i) {
    if (good.load(std::memory_order_relaxed) && !ok(i))
      good.store(false, std::memory_order_relaxed);
  };
  if (pool != nullptr && pieces > 1) {
    pool->parallel_for(pieces, run);
  } else {
    for (int64_t i = 0; i < pieces; ++i) run(i);
  }
  return good.load();
}

// True if ok(begin, end) holds for all ranges that make up [0, n).
template <typename F>
bool all_ranges(ThreadPool* pool, int64_t n, int64_t range, F ok) {
  return all_pieces(pool, (n + range - 1) / range,
                    [&](int64_t i) { return ok(i * range, std::min(n, (i + 1) * range)); });
}

inline constexpr int64_t kChunk = 1024;     // elements of a buffer that stays in L1
inline constexpr int64_t kRange = 1 << 15;  // elements of one piece of work: a multiple of kChunk

// Replaces denormals by zeros of their sign. Uses integer operations, which the compiler
// vectorises.
inline void flush_all(const float* x, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = to_bits(x[i]);
    out[i] = from_bits(u & ((u & 0x7F800000u) == 0 ? 0x80000000u : ~0u));
  }
}

// Elements [begin, begin + n) of an f32 or bf16 tensor: written to `buffer`, or in place if nothing
// has to change.
inline const float* floats(const Tensor& t, int64_t begin, int64_t n, float* buffer, bool flushes) {
  if (t.dtype() == DType::kF32) {
    const float* x = t.as<float>().data() + begin;
    if (!flushes) return x;
    flush_all(x, buffer, n);
  } else {
    const uint16_t* x = t.as<uint16_t>().data() + begin;
    for (int64_t i = 0; i < n; ++i) buffer[i] = bf16_to_f32(x[i]);
    if (flushes) flush_all(buffer, buffer, n);
  }
  return buffer;
}

// IEEE 754-2019 maximum: NaN propagates, +0 > -0.
inline float largest(float a, float b) {
  const float either = a > b ? a : b, zero = from_bits(to_bits(a) & to_bits(b));
  const float m = a == b ? zero : either;
  return a != a ? a : m;
}
// The maximum of a reduction; a NaN of either operand propagates.
inline float larger(float a, float b) {
  const float either = a >= b ? a : b;
  return a != a ? a : either;
}

// With intrinsics: std::sqrt would set errno, and so take one element at a time.
inline void square_roots(const float* a, float* r, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(r + i, _mm256_sqrt_ps(_mm256_loadu_ps(a + i)));
  for (; i < n; ++i) r[i] = std::sqrt(a[i]);
}

inline bool same_bytes(const void* a, const void* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

// Whether one element agrees with `value`. NaN must agree with NaN and infinities with equal ones;
// a value so large that binary32 or bf16 may round it to infinity may also be infinite.
bool agrees(double x, double value, double radius);

// Whether x[0, n) are the results of exp, rsqrt and the like (has_ulps) on a[0, n), stored as
// `dtype`; at most kChunk numbers.
bool function_agrees(const Capabilities& declared, OpKind kind, DType dtype, const float* a,
                     const float* x, int64_t n);
// Whether the result of a sum or mean of `terms` terms agrees with sums in binary64 and the sums of
// sizes, which it may overwrite. `call` need not have inputs.
bool sums_agree(const Call& call, double terms, std::vector<double>& value,
                std::vector<double>& size);
// Whether n numbers are equal; any two NaNs are.
bool same_numbers(const float* x, const float* y, int64_t n);

// Whether |x - value| <= relative |value| + absolute for each element; non-finite ones must agree.
// `relative` includes the rounding to bf16, if any. edge(i) gives the right value where value[i]
// may be meaningless (infinities, NaN, outside the function's domain); it is called only after the
// fast comparison has failed.
template <typename E>
bool close(const float* x, const double* value, int64_t n, double relative, double absolute,
           E edge) {
  if (all_close(x, value, n, [=](int64_t, D4 v) { return fma(relative, abs(v), absolute); }))
    return true;
  for (int64_t i = 0; i < n; ++i) {
    const double v = edge(i);
    if (!agrees(x[i], v, relative * std::fabs(v) + absolute)) return false;
  }
  return true;
}
// The same with a bound per element. Where value is not finite, x only has to be non-finite, too;
// where it is finite and the bound reaches kMayOverflow, x is not checked.
bool within(const float* x, const double* value, const double* radius, int64_t n);

}  // namespace twinrun::screen
