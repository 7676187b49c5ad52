// What is added up behind each element of a result: for faults that add wrongly.
//
//   each_term(op, inputs, DotPrecision::kF32, [&](int64_t element, double term) { sum[element] += term; });
#pragma once

#include <functional>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

// Dots, convolutions and their gradients, sums and means (reduce, reduce_window), scatter_add, select_and_scatter and
// avg_pool_grad, on binary32 operands.
bool has_terms(const Program& program, ValueId id);

struct TermOptions {
  DotPrecision precision = DotPrecision::
      kF32;  // how operands of dots are rounded; a term is the exact sum of its products
  bool last_maximum = false;  // select_and_scatter: of equal maxima the last one gets the gradient
};

// Calls term(element, value) for every addend; those of one element come in an order that an engine may have.
void each_term(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
               const std::function<void(int64_t element, double term)>& term);

// The result with every addition done by `add(sum so far, term)`, starting from the first term rounded by it: add(0, term).
// Means are divided by their count at the end.
Tensor add_up(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
              const std::function<float(float sum, double term)>& add);

}  // namespace twinrun
