#include "program/ops/k_tail.h"

#include <algorithm>

namespace twinrun {

int64_t k_size(const Op& op, const std::vector<Tensor>& inputs) {
  if (op.kind == OpKind::kDotGeneral) return inputs[0].dims()[static_cast<size_t>(op.attrs.lhs_contract)];
  const Dims& d = inputs[1].dims();  // w [kh, kw, ci, co], or dy [n, oh, ow, co] of a kernel gradient
  return op.kind == OpKind::kConvolutionInputGrad ? d[0] * d[1] * d[3] : d[0] * d[1] * d[2];
}

std::vector<Tensor> without_k_tail(const Op& op, const std::vector<Tensor>& inputs, int64_t tail) {
  std::vector<Tensor> out = inputs;
  Tensor& t = out[op.kind == OpKind::kDotGeneral ? 0 : 1];
  t = t.clone();
  const std::span<float> v = t.as<float>();
  const Dims& d = t.dims();
  const int64_t k_total = k_size(op, inputs);
  const int64_t first = std::max<int64_t>(0, k_total - tail);
  if (op.kind == OpKind::kDotGeneral && op.attrs.lhs_contract == 1) {
    for (int64_t row = 0; row < d[0]; ++row) {
      std::fill(v.begin() + row * d[1] + first, v.begin() + (row + 1) * d[1], 0.0f);
    }
  } else if (op.kind == OpKind::kConvolutionInputGrad) {  // k = (kh, kw, co)
    for (int64_t k = first; k < k_total; ++k) {
      for (int64_t ci = 0; ci < d[2]; ++ci) v[static_cast<size_t>((k / d[3] * d[2] + ci) * d[3] + k % d[3])] = 0.0f;
    }
  } else {  // k is the outermost index
    const int64_t rest = t.elements() / k_total;
    std::fill(v.begin() + first * rest, v.end(), 0.0f);
  }
  return out;
}

}  // namespace twinrun
