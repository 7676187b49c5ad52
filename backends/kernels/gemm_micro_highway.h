// Vector types of the tiles (gemm_micro_tiles.h), written for Highway: its widest vector of at most
// 8 binary32 (AVX2: 8, NEON: 4), and two of any type side by side. The instruction set is that for
// which the including file is compiled, so that there is nothing to choose at run time.
#pragma once

// For the instruction set of the including file alone. Without the next two, Highway's functions
// could not be inlined: they would be compiled for more, namely AES.
#define HWY_COMPILE_ONLY_STATIC
#define HWY_DISABLE_PCLMUL_AES     // of x86
#define TOOLCHAIN_MISS_SYS_AUXV_H  // of ARM: nothing is chosen at run time
#include <hwy/highway.h>
#include <stdint.h>

#include "backends/kernels/gemm_micro_tiles.h"

namespace twinrun {
namespace {

struct Highway {
  using Tag = hwy::HWY_NAMESPACE::CappedTag<float, 8>;
  using reg = hwy::HWY_NAMESPACE::Vec<Tag>;
  static constexpr int kLanes = HWY_MIN(HWY_LANES(float), 8);
  static TWINRUN_INLINE reg load(const float* p) { return hwy::HWY_NAMESPACE::LoadU(Tag(), p); }
  static TWINRUN_INLINE reg load_some(const float* p, int n) {
    if (n >= kLanes) return load(p);
    float some[kLanes] = {};
    for (int i = 0; i < n; ++i) some[i] = p[i];
    return load(some);
  }
  static TWINRUN_INLINE void store(float* p, reg x) { hwy::HWY_NAMESPACE::StoreU(x, Tag(), p); }
  static TWINRUN_INLINE void store_some(float* p, reg x, int n) {
    if (n >= kLanes) return store(p, x);
    float some[kLanes];
    store(some, x);
    for (int i = 0; i < n; ++i) p[i] = some[i];
  }
  static TWINRUN_INLINE reg set1(const float* p) { return hwy::HWY_NAMESPACE::Set(Tag(), *p); }
  static TWINRUN_INLINE reg zero() { return hwy::HWY_NAMESPACE::Zero(Tag()); }
  static TWINRUN_INLINE reg fma(reg a, reg b, reg c) { return hwy::HWY_NAMESPACE::MulAdd(a, b, c); }
  static TWINRUN_INLINE reg add(reg a, reg b) { return hwy::HWY_NAMESPACE::Add(a, b); }
  static TWINRUN_INLINE reg canonical(reg x) {
    namespace hn = hwy::HWY_NAMESPACE;
    const reg nan = hn::Set(Tag(), __builtin_bit_cast(float, 0x7FC00000u));
    return hn::IfThenElse(hn::IsNaN(x), nan, x);
  }
};

template <class V>
struct Pair {
  struct reg {
    typename V::reg low, high;
  };
  static constexpr int kLanes = 2 * V::kLanes;
  static TWINRUN_INLINE reg load(const float* p) { return {V::load(p), V::load(p + V::kLanes)}; }
  static TWINRUN_INLINE reg load_some(const float* p, int n) {
    if (n <= V::kLanes) return {V::load_some(p, n), V::zero()};
    return {V::load(p), V::load_some(p + V::kLanes, n - V::kLanes)};
  }
  static TWINRUN_INLINE void store(float* p, const reg& x) {
    V::store(p, x.low);
    V::store(p + V::kLanes, x.high);
  }
  static TWINRUN_INLINE void store_some(float* p, const reg& x, int n) {
    V::store_some(p, x.low, n);
    if (n > V::kLanes) V::store_some(p + V::kLanes, x.high, n - V::kLanes);
  }
  static TWINRUN_INLINE reg set1(const float* p) {
    const typename V::reg x = V::set1(p);
    return {x, x};
  }
  static TWINRUN_INLINE reg zero() { return {V::zero(), V::zero()}; }
  static TWINRUN_INLINE reg fma(const reg& a, const reg& b, const reg& c) {
    return {V::fma(a.low, b.low, c.low), V::fma(a.high, b.high, c.high)};
  }
  static TWINRUN_INLINE reg add(const reg& a, const reg& b) {
    return {V::add(a.low, b.low), V::add(a.high, b.high)};
  }
  static TWINRUN_INLINE reg canonical(const reg& x) {
    return {V::canonical(x.low), V::canonical(x.high)};
  }
};

}  // namespace
}  // namespace twinrun
