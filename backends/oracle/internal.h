// Shared by the oracle's files: one call of eval_op, reading of operands, work on a thread pool,
// and one function per class of ops that fills in the result.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include "backends/oracle/oracle.h"
#include "backends/oracle/rounding.h"
#include "program/base/element.h"

namespace twinrun::oracle {

struct Call {
  const Capabilities& declared;
  const Op& op;
  std::span<const Tensor> inputs;
  ThreadPool* pool;
  OracleResult& out;

  bool wide = false;       // operands are binary64: cpu:f64 as an engine
  int64_t first = 0;       // the element with which `out` begins
  unsigned unrounded = 0;  // bit i: operand i may be a product before its rounding
  bool bounded = true;     // false: only values are needed, and `out` need not have radii
  double* to = nullptr;    // where the values are written instead of into `out`

  Storage storage() const { return {op.type.dtype, declared.flush, wide}; }
  double* value(int64_t i) const { return (to != nullptr ? to : out.value.data()) + (i - first); }
  double* radius(int64_t i) const { return out.radius.data() + (i - first); }
  void set(int64_t i, Estimate e) const {
    *value(i) = e.value;
    if (bounded) *radius(i) = e.radius;
  }
  void exact(int64_t begin, int64_t end) const {
    if (bounded) std::fill_n(radius(begin), end - begin, 0.0);
  }
};

// Copies `count` elements at, at + step, .. as numbers.
inline void elements(const Tensor& t, int64_t at, int64_t count, double* to, int64_t step = 1) {
  if (t.dtype() == DType::kF32) {
    const float* from = t.as<float>().data() + at;
    for (int64_t i = 0; i < count; ++i) to[i] = static_cast<double>(from[i * step]);
  } else if (t.dtype() == DType::kF64) {
    const double* from = t.as<double>().data() + at;
    for (int64_t i = 0; i < count; ++i) to[i] = from[i * step];
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = number_at(t, at + i * step);
  }
}

// Replaces a binary32 denormal by a zero of its sign.
inline double flushed(double x) { return std::fabs(x) < kMinNormal ? std::copysign(0.0, x) : x; }
// Element i of an operand as an arithmetic op of the declared engine reads it: flushed if declared.
inline double operand(const Call& call, size_t which, int64_t i) {
  const double x = number_at(call.inputs[which], i);
  return call.declared.flush ? flushed(x) : x;
}

// Elements of one piece of work: some ten microseconds, so that the small results of each of many
// cores are shared out too.
inline constexpr int64_t kRange = 1 << 13;
// Elements whose sums are added up by themselves before the sums of others are added: unlike
// kRange, this decides the last digits of estimates.
inline constexpr int64_t kSummedRange = 1 << 15;

// Calls f(begin, end) for ranges that make up [0, n), in parallel if there is a pool.
template <typename F>
void in_ranges(ThreadPool* pool, int64_t n, F f) {
  in_pieces(pool, (n + kRange - 1) / kRange,
            [&](int64_t piece) { f(piece * kRange, std::min(n, (piece + 1) * kRange)); });
}
// Calls f(i) for every i in [0, n), in parallel by ranges if there is a pool.
template <typename F>
void for_each_element(ThreadPool* pool, int64_t n, F f) {
  in_ranges(pool, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) f(i);
  });
}

// Sources, moves and elementwise ops: computes elements [begin, end) only.
void eval_pointwise(const Call& call, int64_t begin, int64_t end);
// The same estimates with vector instructions, for at most kVectorStretch elements of + - * / sqrt
// max min compare. Returns false for any other op, or if some number is neither zero nor well
// inside the normal range.
inline constexpr int64_t kVectorStretch = 256;
bool eval_vectors(const Call& call, int64_t begin, int64_t end);
void eval_dot(const Call& call);
void eval_reduce(const Call& call);
void eval_window(const Call& call);  // reduce_window, select_and_scatter, avg_pool_grad
void eval_scatter_add(const Call& call);
void eval_sort_order(const Call& call);
void eval_all_reduce(const Call& call);

}  // namespace twinrun::oracle
