// The flat contracted index k of a dot or convolution (docs/method/numerics.md), as seen from the
// operands. Faults that drop terms of the sums use it, and the hypotheses that recognise them.
//
//   k_size(op, inputs);               // K
//   without_k_tail(op, inputs, 32);   // operands for which the last 32 terms of each sum are 0
#pragma once

#include <cstdint>
#include <vector>

#include "program/base/tensor.h"
#include "program/ops/op.h"

namespace twinrun {

// Number of terms in the sum of one output element. For ops of class kDot only.
int64_t k_size(const Op& op, const std::vector<Tensor>& inputs);

// The operands, one of them changed so that the terms K - tail .. K - 1 multiply a zero.
std::vector<Tensor> without_k_tail(const Op& op, const std::vector<Tensor>& inputs, int64_t tail);

}  // namespace twinrun
