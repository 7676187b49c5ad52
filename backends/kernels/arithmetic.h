// What every kernel needs to keep the numeric contract: flushing, canonical NaNs, typed loads and
// stores, and cutting work into pieces. Private to backends/kernels.
//
//   for_pieces(context, n, work, [&](int64_t i) { FlushScope scope(flush); ... });
//   for_ranges(context, elements, 1, [&](int64_t begin, int64_t end) { ... });
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "backends/kernels/float_mode.h"
#include "backends/kernels/kernels.h"
#include "program/base/bits.h"

namespace twinrun {

// Makes denormal results and operands zero for this thread while in scope (float_mode.h). The
// empty asm keeps the compiler from moving arithmetic on memory out of the scope.
class FlushScope {
 public:
  explicit FlushScope(bool on) : on_(on) {
    if (!on_) return;
    saved_ = float_mode();
    set_float_mode(saved_ | kDenormalsAreZero);
    asm volatile("" ::: "memory");
  }
  ~FlushScope() {
    if (!on_) return;
    asm volatile("" ::: "memory");
    set_float_mode(saved_);
  }
  FlushScope(const FlushScope&) = delete;
  FlushScope& operator=(const FlushScope&) = delete;

 private:
  bool on_;
  FloatMode saved_ = 0;
};

// Below this much work (about one unit per element touched) waking the pool costs more than it
// saves.
inline constexpr int64_t kParallelWork = 1 << 15;

// Calls run(i) for i < pieces, on the pool if there is enough work.
template <typename F>
void for_pieces(const KernelContext& context, int64_t pieces, int64_t work, F&& run) {
  if (context.pool == nullptr || context.pool->threads() == 1 || pieces <= 1 ||
      work < kParallelWork) {
    for (int64_t i = 0; i < pieces; ++i) run(i);
  } else {
    context.pool->parallel_for(pieces, std::ref(run));  // no copy, so no allocation
  }
}

inline int threads_of(const KernelContext& context) {
  return context.pool == nullptr ? 1 : context.pool->threads();
}

// Cuts [0, n) into ranges of about equal size and calls run(begin, end) for each, on the pool if
// there is enough work; `cost` is the work per index. Only for indices that are independent.
template <typename F>
void for_ranges(const KernelContext& context, int64_t n, int64_t cost, F&& run) {
  if (n <= 0) return;
  const int64_t threads = threads_of(context);
  const int64_t work = n * std::max<int64_t>(cost, 1);
  if (threads == 1 || work < kParallelWork) {
    run(int64_t{0}, n);
    return;
  }
  const int64_t most = std::max<int64_t>(1, work / (kParallelWork / 2));
  const int64_t pieces = std::min({n, threads * 4, most});
  for_pieces(context, pieces, work, [&](int64_t i) { run(n * i / pieces, n * (i + 1) / pieces); });
}

// x as an op sees it: with kFlush a denormal is a zero of its sign.
template <bool kFlush>
inline float flushed(float x) {
  return kFlush ? flush(x) : x;
}

// Element types: how kernels load an element as binary32 and store a result.
struct F32 {
  using type = float;
  static float load(float x) { return x; }
  template <bool kFlush>
  static float store(float x) {
    return canonical(x);
  }
};
struct BF16 {
  using type = uint16_t;
  static float load(uint16_t x) { return bf16_to_f32(x); }
  template <bool kFlush>
  static uint16_t store(float x) {
    return kFlush ? bf16_round_flush(x) : bf16_round(x);
  }
};

// Calls f with the element type and flushing as template arguments.
template <typename F>
void dispatch_float(DType dtype, bool flush, F&& f) {
  if (dtype == DType::kBF16) {
    flush ? f(BF16{}, std::bool_constant<true>{}) : f(BF16{}, std::bool_constant<false>{});
  } else {
    flush ? f(F32{}, std::bool_constant<true>{}) : f(F32{}, std::bool_constant<false>{});
  }
}

}  // namespace twinrun
