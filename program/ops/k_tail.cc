// The size of the flat k of dots and convolutions, and operands with the end of it zeroed.
#include "program/ops/k_tail.h"

#include <algorithm>
#include <cstring>

namespace twinrun {

int64_t k_size(const Op& op, const std::vector<Tensor>& inputs) {
  if (op.kind == OpKind::kDotGeneral)
    return inputs[0].dims()[static_cast<size_t>(op.attrs.batch_dims + op.attrs.lhs_contract)];
  // w [kh, kw, ci, co], or dy [n, oh, ow, co] of a kernel gradient.
  const Dims& d = inputs[1].dims();
  return op.kind == OpKind::kConvolutionInputGrad ? d[0] * d[1] * d[3] : d[0] * d[1] * d[2];
}

std::vector<Tensor> without_k_tail(const Op& op, const std::vector<Tensor>& inputs, int64_t tail) {
  std::vector<Tensor> out = inputs;
  Tensor& t = out[op.kind == OpKind::kDotGeneral ? 0 : 1];
  t = t.clone();
  const size_t size = size_of(t.dtype());
  const auto zero = [&](int64_t begin, int64_t end) {  // zero bits are zero in every dtype
    std::memset(t.raw() + static_cast<size_t>(begin) * size, 0,
                static_cast<size_t>(end - begin) * size);
  };
  const Dims& d = t.dims();
  const int64_t k_total = k_size(op, inputs);
  const int64_t first = std::max<int64_t>(0, k_total - tail);
  if (op.kind == OpKind::kDotGeneral) {
    // The batch, if there is one, is one matrix after the other.
    const int64_t rows = d[d.size() - 2], columns = d[d.size() - 1];
    const int64_t matrices = t.elements() / std::max<int64_t>(rows * columns, 1);
    for (int64_t i = 0; i < matrices; ++i) {
      const int64_t at = i * rows * columns;
      if (op.attrs.lhs_contract == 0) {
        zero(at + first * columns, at + rows * columns);
        continue;
      }
      for (int64_t row = 0; row < rows; ++row)
        zero(at + row * columns + first, at + (row + 1) * columns);
    }
  } else if (op.kind == OpKind::kConvolutionInputGrad) {  // k = (kh, kw, co)
    for (int64_t k = first; k < k_total; ++k) {
      for (int64_t ci = 0; ci < d[2]; ++ci) {
        const int64_t at = (k / d[3] * d[2] + ci) * d[3] + k % d[3];
        zero(at, at + 1);
      }
    }
  } else {  // k is the outermost index
    zero(first * (t.elements() / k_total), t.elements());
  }
  return out;
}

}  // namespace twinrun
