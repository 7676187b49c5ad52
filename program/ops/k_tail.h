// The flat k of a dot or convolution (docs/numerics.md), from the side of its operands.
//
//   k_size(op, inputs);                     // K
//   without_k_tail(op, inputs, 32);         // the operands with which the last 32 terms of every sum are zero
#pragma once

#include <cstdint>
#include <vector>

#include "program/base/tensor.h"
#include "program/ops/op.h"

namespace twinrun {

// Number of terms of one output's sum. Ops of class kDot only.
int64_t k_size(const Op& op, const std::vector<Tensor>& inputs);

// A copy of the operands in which the terms K - tail .. K - 1 multiply a zero.
std::vector<Tensor> without_k_tail(const Op& op, const std::vector<Tensor>& inputs, int64_t tail);

}  // namespace twinrun
