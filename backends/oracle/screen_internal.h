// What the files of the screen share. Everything here is independent of backends/kernels: a check
// that ran the subject's own loops would repeat its faults.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>

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
  unsigned unrounded = 0;  // operands that may be products before their rounding
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

inline constexpr double kUnit = 0x1p-24;
inline constexpr double kMinNormal = 0x1p-126;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
// Where terms add up to this, binary32 may overflow on the way: not screened.
inline constexpr double kMayOverflow = 0x1p127;

inline bool finite(double x) { return std::fabs(x) < kInfinity; }

// Error of a sum of terms that each pass through `depth` rounded additions, in units of the sum of
// their sizes: the bound of every case while short, eight standard deviations of independent
// roundings when long.
inline double sum_error(double depth) { return kUnit * std::min(depth, 8 * std::sqrt(depth)); }

// ok(piece) for every piece; false as soon as one is.
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

// ok(begin, end) over ranges of [0, n).
template <typename F>
bool all_ranges(ThreadPool* pool, int64_t n, int64_t range, F ok) {
  return all_pieces(pool, (n + range - 1) / range,
                    [&](int64_t i) { return ok(i * range, std::min(n, (i + 1) * range)); });
}

inline constexpr int64_t kChunk = 1024;     // elements between buffers in L1
inline constexpr int64_t kRange = 1 << 15;  // elements of a piece: a multiple of kChunk

// Denormals to zeros of their sign; in integers, so that it becomes vector code.
inline void flush_all(const float* x, float* out, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t u = to_bits(x[i]);
    out[i] = from_bits(u & ((u & 0x7F800000u) == 0 ? 0x80000000u : ~0u));
  }
}

// Elements [begin, begin + n) of an f32 or bf16 tensor; in place where nothing has to change.
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

inline bool same_bytes(const void* a, const void* b, size_t bytes) {
  return std::memcmp(a, b, bytes) == 0;
}

// One element: NaN and infinities must agree, what binary32 or bf16 may round to infinity may be
// one.
bool agrees(double x, double value, double radius);

// |x - value| <= relative |value| + absolute for each; non-finite ones must agree. `relative`
// includes storing as bf16. What it is at the edges, where value may be anything: edge(i), asked
// for elements that are not close only.
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
// With a bound per element; elements whose bound reaches kMayOverflow are not looked at.
bool within(const float* x, const double* value, const double* radius, int64_t n);

}  // namespace twinrun::screen
