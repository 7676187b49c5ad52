// Adds terms in a given Order (variant.h), for one sum or for 32 sums in vector lanes. Both give
// the same bits.
//
//   float s = sum_in_order<float>(order, n, Numbers{x});
#pragma once

#include <cstdint>

#include "backends/kernels/float_mode.h"
#include "backends/kernels/intrinsics.h"
#include "backends/variants/variant.h"

namespace twinrun::variants {

// 32 binary32 numbers in four AVX registers: few enough for a chain of sums to stay in registers.
inline constexpr int kLanes = 32;
struct Lanes {
  __m256 v[4];
};

inline float load(const float* x, float) { return *x; }
inline Lanes load(const float* x, const Lanes&) {
  return {{_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8), _mm256_loadu_ps(x + 16),
           _mm256_loadu_ps(x + 24)}};
}
inline float spread(float x, float) { return x; }
inline Lanes spread(float x, const Lanes&) {
  const __m256 v = _mm256_set1_ps(x);
  return {{v, v, v, v}};
}
inline float add(float a, float b) { return a + b; }
inline Lanes add(const Lanes& a, const Lanes& b) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.v[i] = _mm256_add_ps(a.v[i], b.v[i]);
  return r;
}
inline float multiply(float a, float b) { return multiplied(a, b); }
inline float multiply_add(float a, float b, float c) { return fused(a, b, c); }
#if defined(__x86_64__)
inline Lanes multiply(const Lanes& a, const Lanes& b) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.v[i] = _mm256_mul_ps(a.v[i], b.v[i]);
  return r;
}
inline Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
  Lanes r;
  for (int i = 0; i < 4; ++i) r.v[i] = _mm256_fmadd_ps(a.v[i], b.v[i], c.v[i]);
  return r;
}
#else
inline void store(float* to, const Lanes& x) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_ps(to + 8 * i, x.v[i]);
}
inline Lanes multiply(const Lanes& a, const Lanes& b) {
  float x[kLanes], y[kLanes];
  store(x, a);
  store(y, b);
  for (int i = 0; i < kLanes; ++i) x[i] = multiplied(x[i], y[i]);
  return load(x, Lanes{});
}
inline Lanes multiply_add(const Lanes& a, const Lanes& b, const Lanes& c) {
  float x[kLanes], y[kLanes], z[kLanes];
  store(x, a);
  store(y, b);
  store(z, c);
  for (int i = 0; i < kLanes; ++i) z[i] = fused(x[i], y[i], z[i]);
  return load(z, Lanes{});
}
#endif

// Terms that are consecutive numbers.
struct Numbers {
  const float* x;
  float first(int64_t k) const { return x[k]; }
  float plus(float sum, int64_t k) const { return sum + x[k]; }
};

// Terms a[k] b[k]. For T = Lanes, b holds 32 sums side by side ([k][32]). a is laid out like b, or,
// with kSpread, holds one number per term.
template <typename T, bool kFused, bool kSpread>
struct Products {
  static constexpr int64_t kStep = sizeof(T) / sizeof(float);
  const float *a, *b;
  T left(int64_t k) const { return kSpread ? spread(a[k], T{}) : load(a + k * kStep, T{}); }
  T first(int64_t k) const { return multiply(left(k), load(b + k * kStep, T{})); }
  T plus(const T& sum, int64_t k) const {
    const T y = load(b + k * kStep, T{});
    return kFused ? multiply_add(left(k), y, sum) : add(sum, multiply(left(k), y));
  }
};

// The sum of n >= 1 parts: in order, or, with `tree`, pairwise by neighbours, then neighbours of
// these sums.
template <typename T, typename Part>
T combined(bool tree, int64_t n, Part part) {
  T sum = part(0);
  if (!tree) {
    for (int64_t i = 1; i < n; ++i) sum = add(sum, part(i));
    return sum;
  }
  if (n == 1) return sum;
  // A stack of complete subtrees of falling size: one per set bit of the number of parts so far.
  T waiting[64];
  waiting[0] = sum;
  int depth = 1;
  for (int64_t i = 1; i < n; ++i) {
    sum = part(i);
    for (int64_t done = i; (done & 1) != 0; done >>= 1) sum = add(waiting[--depth], sum);
    waiting[depth++] = sum;
  }
  sum = waiting[--depth];
  while (depth > 0) sum = add(waiting[--depth], sum);
  return sum;
}

// `terms.first(k)` starts a sum with term k, `terms.plus(sum, k)` adds term k. The empty sum is +0.
template <typename T, typename Terms>
T sum_in_order(const Order& o, int64_t n, const Terms& terms) {
  if (n == 0) return spread(0.0f, T{});
  const auto chain = [&](int64_t begin, int64_t end, int64_t step) {
    int64_t at = begin, count = (end - begin + step - 1) / step;
    if (o.reversed) {
      at = begin + (count - 1) * step;
      step = -step;
    }
    T sum = terms.first(at);
    while (--count > 0) sum = terms.plus(sum, at += step);
    return sum;
  };
  const auto block = [&](int64_t begin, int64_t end) {
    const int64_t lanes = end - begin < o.lanes ? end - begin : o.lanes;
    if (lanes == 1) return chain(begin, end, 1);
    return combined<T>(o.lanes_tree, lanes,
                       [&](int64_t l) { return chain(begin + l, end, lanes); });
  };
  const auto segment = [&](int64_t begin, int64_t end) {
    const int64_t size = o.block > 0 ? o.block : end - begin;
    return combined<T>(o.blocks_tree, (end - begin + size - 1) / size, [&](int64_t i) {
      const int64_t from = begin + i * size;
      return block(from, from + size < end ? from + size : end);
    });
  };
  const int64_t size = o.segment > 0 ? o.segment : n;
  return combined<T>(false, (n + size - 1) / size, [&](int64_t i) {
    return segment(i * size, (i + 1) * size < n ? (i + 1) * size : n);
  });
}

}  // namespace twinrun::variants
