// Shared by the files of this folder: reading and storing elements, and one function per family of
// ops.
#pragma once

#include <vector>

#include "backends/variants/variant.h"
#include "program/base/bits.h"
#include "program/ops/contraction.h"

namespace twinrun::variants {

// Element i of an f32 or bf16 tensor.
inline float number(const Tensor& t, int64_t i) {
  const auto u = static_cast<size_t>(i);
  return t.dtype() == DType::kBF16 ? bf16_to_f32(t.as<uint16_t>()[u]) : t.as<float>()[u];
}
// Stores x as element i, rounded to the type of t. If the engine flushes, call it with
// flush-to-zero set (FlushScope).
inline void set_number(Tensor& t, int64_t i, float x, bool flush) {
  const auto u = static_cast<size_t>(i);
  if (t.dtype() == DType::kBF16) {
    t.as<uint16_t>()[u] = flush ? bf16_round_flush(x) : bf16_round(x);
  } else {
    t.as<float>()[u] = canonical(x);
  }
}

// Sums over a regular index grid: dots, convolutions, reductions, the all-reduce. Computes 32
// results at a time.
bool is_grid_sum(const Op& op);
void grid_sums(const Variant& variant, const Op& op, std::span<const Tensor> inputs,
               Tensor& output);
// Some elements (flat indices) for several variants of one declaration: [variant][element]. In
// parallel if there is a pool.
std::vector<std::vector<float>> grid_sum_elements(std::span<const Variant> variants, const Op& op,
                                                  std::span<const Tensor> inputs,
                                                  std::span<const int64_t> elements,
                                                  ThreadPool* pool);

// Sums of scattered terms: pooling, its gradients, scatter_add.
void scattered_sums(const Variant& variant, const Op& op, std::span<const Tensor> inputs,
                    Tensor& output);

// exp, log, tanh, erf, log1p, logistic, rsqrt of one number.
float elementary(const Variant& variant, OpKind kind, float x);

}  // namespace twinrun::variants
