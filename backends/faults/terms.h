// Enumerates the addends of every element of a result, for faults that accumulate wrongly.
//
//   each_term(op, inputs, {}, [&](int64_t element, double term) { sum[element] += term; });
#pragma once

#include <functional>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

// True for dots, convolutions and their gradients, sums and means (reduce, reduce_window),
// scatter_add, select_and_scatter and avg_pool_grad, on binary32 operands.
bool has_terms(const Program& program, ValueId id);

struct TermOptions {
  // How operands of dots and convolutions are rounded. With several bf16 parts, one term is the sum
  // of its partial products.
  DotPrecision precision = DotPrecision::kF32;
  bool last_maximum = false;  // select_and_scatter: of equal maxima the last one gets the gradient
};

// Calls term(element, value) for every addend. The addends of one element come in an order that an
// engine is allowed to use.
void each_term(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
               const std::function<void(int64_t element, double term)>& term);

// The result of the op with every addition done by `add(sum so far, term)`, starting with add(0,
// first term). Means are divided by their count at the end.
Tensor add_up(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
              const std::function<float(float sum, double term)>& add);

}  // namespace twinrun
