// Enumerates the addends of every element of a result, for faults that accumulate wrongly.
//
//   each_addend(op, inputs, {}, [&](int64_t element, double term) { sum[element] += term; });
#pragma once

#include <functional>
#include <vector>

#include "backends/core/backend.h"
#include "program/ops/terms.h"

namespace twinrun {

// Whether the op is a sum of terms (program/ops/terms.h) on binary32 operands.
bool has_terms(const Program& program, ValueId id);

struct TermOptions {
  // How operands of dots and convolutions are rounded. With several bf16 parts, one term is the sum
  // of its partial products.
  DotPrecision precision = DotPrecision::kF32;
  Ties ties = Ties::kFirst;
};

// Calls addend(element, value) for every addend. The addends of one element come in the contract's
// order.
void each_addend(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
                 const std::function<void(int64_t element, double value)>& addend);

// The result of the op with every addition done by `add(sum so far, term)`, starting with add(0,
// first term). Means are divided by their count at the end.
Tensor add_up(const Op& op, const std::vector<Tensor>& inputs, TermOptions options,
              const std::function<float(float sum, double term)>& add);

}  // namespace twinrun
