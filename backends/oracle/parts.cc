// Cuts stacks of matrices and channel groups out of operands and results.
#include "backends/oracle/parts.h"

#include <cstring>

namespace twinrun::oracle {
namespace {

bool stacked(const Op& op) { return op.kind == OpKind::kDotGeneral; }

// One matrix of a stack [.., rows, columns]; it shares the storage of the stack.
Tensor matrix(const Tensor& t, int64_t i) {
  const Dims& d = t.dims();
  const int64_t rows = d[d.size() - 2], columns = d[d.size() - 1];
  const auto bytes = static_cast<size_t>(rows * columns) * size_of(t.dtype());
  return t.at(static_cast<size_t>(i) * bytes, {t.dtype(), {rows, columns}});
}

// Columns [i n, (i + 1) n) of the last dimension, n = size / groups.
Tensor columns(const Tensor& t, int64_t i, int64_t groups) {
  TensorType type = t.type();
  const int64_t all = type.dims.back(), n = all / groups;
  type.dims.back() = n;
  Tensor out = Tensor::empty(type);
  const size_t size = size_of(type.dtype);
  for (int64_t row = 0; row < (all == 0 ? 0 : t.elements() / all); ++row) {
    std::memcpy(out.raw() + static_cast<size_t>(row * n) * size,
                t.raw() + static_cast<size_t>(row * all + i * n) * size,
                static_cast<size_t>(n) * size);
  }
  return out;
}

}  // namespace

int64_t part_count(const Op& op, std::span<const Tensor> inputs) {
  if (!stacked(op)) return op.attrs.groups;
  int64_t count = 1;
  for (size_t d = 0; d + 2 < inputs[0].dims().size(); ++d) count *= inputs[0].dims()[d];
  return count;
}

Part part_of(const Op& op, std::span<const Tensor> inputs, int64_t i) {
  Part part{op, {}};
  Dims& dims = part.op.type.dims;
  if (stacked(op)) {
    dims.erase(dims.begin(), dims.end() - 2);
    for (const Tensor& t : inputs) part.inputs.push_back(matrix(t, i));
  } else {
    part.op.attrs.groups = 1;
    dims.back() /= op.attrs.groups;
    if (!part.op.attrs.shape.empty()) part.op.attrs.shape = dims;
    for (const Tensor& t : inputs) part.inputs.push_back(columns(t, i, op.attrs.groups));
  }
  return part;
}

Tensor part_of_result(const Op& op, const Tensor& output, int64_t i) {
  return stacked(op) ? matrix(output, i) : columns(output, i, op.attrs.groups);
}

Placement placement_of(const Op& op, int64_t i) {
  const Dims& d = op.type.dims;
  if (stacked(op)) {
    const int64_t n = d[d.size() - 2] * d[d.size() - 1];
    return {i * n, n, n};
  }
  const int64_t n = d.back() / op.attrs.groups;
  return {i * n, n, d.back()};
}

}  // namespace twinrun::oracle
