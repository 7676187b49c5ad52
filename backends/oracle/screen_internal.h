// Shared by the files of the screen.
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

// The largest |checksum - expected checksum| / radius of the rows of a dot or convolution.
double worst_row(const Call& call);

using oracle::kInfinity;
using oracle::kMinNormal;
using oracle::kUnit;
// Sums whose terms reach this size may overflow binary32 on the way; they are not screened.
inline constexpr double kMayOverflow = 0x1p127;

inline bool finite(double x) { return std::fabs(x) < kInfinity; }

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

inline constexpr int64_t kRange = 1 << 15;  // elements of one piece of work

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

}  // namespace twinrun::screen
