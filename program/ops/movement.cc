// broadcast_in_dim, reshape, transpose, concatenate, slice, pad, gather, select, negate, abs: they
// move bits (or change a sign bit) and never round.
#include <algorithm>

#include "program/ops/op_def.h"

namespace twinrun {
namespace {

TensorType infer_broadcast(const Op& op, std::span<const TensorType> in) {
  const Dims& from = in[0].dims;
  if (op.attrs.dims.size() != from.size()) {
    throw GraphError(op.name + ": broadcast of " + to_string(in[0]) + " names " +
                     std::to_string(op.attrs.dims.size()) + " dimensions");
  }
  int64_t last = -1;
  for (size_t i = 0; i < from.size(); ++i) {
    const int64_t to = op.attrs.dims[i];
    if (to <= last || to >= static_cast<int64_t>(op.attrs.shape.size()) ||
        (from[i] != 1 && from[i] != op.attrs.shape[static_cast<size_t>(to)])) {
      throw GraphError(op.name + ": cannot broadcast " + to_string(in[0]) + " to " +
                       to_string(op.attrs.shape));
    }
    last = to;
  }
  return {in[0].dtype, op.attrs.shape};
}

// The gradient is summed over the dimensions that were broadcast; a reshape restores those of size
// 1.
void gradient_broadcast(GradientArgs& g) {
  const Dims from = g.b.type(g.op.operands[0]).dims;
  const Dims to = g.op.attrs.shape;
  Dims reduced;
  for (int64_t i = 0; i < static_cast<int64_t>(to.size()); ++i) {
    const auto at = std::find(g.op.attrs.dims.begin(), g.op.attrs.dims.end(), i);
    const bool new_dim = at == g.op.attrs.dims.end();
    const bool repeated = !new_dim &&
                          from[static_cast<size_t>(at - g.op.attrs.dims.begin())] == 1 &&
                          to[static_cast<size_t>(i)] != 1;
    if (new_dim || repeated) reduced.push_back(i);
  }
  ValueId d = g.dy;
  if (!reduced.empty()) d = g.b.reduce(d, reduced, Reducer::kSum, "grad_sum");
  if (g.b.type(d).dims != from) d = g.b.reshape(d, from, "grad_reshape");
  g.d[0] = d;
}

TensorType infer_reshape(const Op& op, std::span<const TensorType> in) {
  const TensorType out{in[0].dtype, op.attrs.shape};
  if (out.elements() != in[0].elements()) {
    throw GraphError(op.name + ": cannot reshape " + to_string(in[0]) + " to " +
                     to_string(op.attrs.shape));
  }
  return out;
}
void gradient_reshape(GradientArgs& g) {
  g.d[0] = g.b.reshape(g.dy, g.b.type(g.op.operands[0]).dims, "grad_reshape");
}

TensorType infer_transpose(const Op& op, std::span<const TensorType> in) {
  Dims out(in[0].dims.size());
  std::vector<bool> seen(out.size(), false);
  if (op.attrs.dims.size() != out.size())
    throw GraphError(op.name + ": permutation of another rank");
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t from = op.attrs.dims[i];
    if (from < 0 || from >= static_cast<int64_t>(out.size()) || seen[static_cast<size_t>(from)]) {
      throw GraphError(op.name + ": " + to_string(op.attrs.dims) + " is not a permutation");
    }
    seen[static_cast<size_t>(from)] = true;
    out[i] = in[0].dims[static_cast<size_t>(from)];
  }
  return {in[0].dtype, out};
}
void gradient_transpose(GradientArgs& g) {
  Dims inverse(g.op.attrs.dims.size());
  for (size_t i = 0; i < inverse.size(); ++i) {
    inverse[static_cast<size_t>(g.op.attrs.dims[i])] = static_cast<int64_t>(i);
  }
  g.d[0] = g.b.transpose(g.dy, inverse, "grad_transpose");
}

TensorType infer_select(const Op& op, std::span<const TensorType> in) {
  if (in[0].dtype != DType::kPred || in[0].dims != in[1].dims || in[1] != in[2]) {
    throw GraphError(op.name + ": select of " + to_string(in[0]) + ", " + to_string(in[1]) +
                     " and " + to_string(in[2]));
  }
  return in[1];
}
void gradient_select(GradientArgs& g) {
  const ValueId zero =
      g.b.broadcast_scalar(g.b.constant(0, g.b.type(g.dy).dtype, "zero"), g.dy, "zeros");
  g.d[1] = g.b.select(g.op.operands[0], g.dy, zero, "grad_true");
  g.d[2] = g.b.select(g.op.operands[0], zero, g.dy, "grad_false");
}

size_t checked_axis(const Op& op, const TensorType& t, size_t attributes) {
  if (op.attrs.dims.size() != attributes || op.attrs.dims[0] < 0 || op.attrs.dims[0] >= t.rank()) {
    throw GraphError(op.name + ": " + std::string(name_of(op.kind)) + " of " + to_string(t) +
                     " along dimension " + to_string(op.attrs.dims));
  }
  return static_cast<size_t>(op.attrs.dims[0]);
}

TensorType infer_concatenate(const Op& op, std::span<const TensorType> in) {
  const size_t axis = checked_axis(op, in[0], 1);
  TensorType out = in[0], rest = in[1];
  if (in[1].rank() == in[0].rank()) rest.dims[axis] = in[0].dims[axis];
  if (rest != in[0]) {
    throw GraphError(op.name + ": concatenate of " + to_string(in[0]) + " and " + to_string(in[1]) +
                     " along dimension " + std::to_string(axis));
  }
  out.dims[axis] += in[1].dims[axis];
  return out;
}
void gradient_concatenate(GradientArgs& g) {
  const int64_t axis = g.op.attrs.dims[0];
  const int64_t first = g.b.type(g.op.operands[0]).dims[static_cast<size_t>(axis)];
  const int64_t all = g.b.type(g.dy).dims[static_cast<size_t>(axis)];
  g.d[0] = g.b.slice(g.dy, axis, 0, first, "grad_lhs");
  g.d[1] = g.b.slice(g.dy, axis, first, all, "grad_rhs");
}

TensorType infer_slice(const Op& op, std::span<const TensorType> in) {
  const size_t axis = checked_axis(op, in[0], 3);
  const int64_t begin = op.attrs.dims[1], end = op.attrs.dims[2];
  if (begin < 0 || end < begin || end > in[0].dims[axis]) {
    throw GraphError(op.name + ": slice [" + std::to_string(begin) + ", " + std::to_string(end) +
                     ") of dimension " + std::to_string(axis) + " of " + to_string(in[0]));
  }
  TensorType out = in[0];
  out.dims[axis] = end - begin;
  return out;
}
void gradient_slice(GradientArgs& g) {
  const Dims& a = g.op.attrs.dims;
  const int64_t size = g.b.type(g.op.operands[0]).dims[static_cast<size_t>(a[0])];
  g.d[0] = g.b.pad(g.dy, a[0], a[1], size - a[2], "grad_pad");
}

TensorType infer_pad(const Op& op, std::span<const TensorType> in) {
  const size_t axis = checked_axis(op, in[0], 3);
  if (op.attrs.dims[1] < 0 || op.attrs.dims[2] < 0) {
    throw GraphError(op.name + ": negative padding " + to_string(op.attrs.dims));
  }
  TensorType out = in[0];
  out.dims[axis] += op.attrs.dims[1] + op.attrs.dims[2];
  return out;
}
void gradient_pad(GradientArgs& g) {
  const Dims& a = g.op.attrs.dims;
  const int64_t size = g.b.type(g.op.operands[0]).dims[static_cast<size_t>(a[0])];
  g.d[0] = g.b.slice(g.dy, a[0], a[1], a[1] + size, "grad_slice");
}

TensorType infer_gather(const Op& op, std::span<const TensorType> in) {
  if (in[0].rank() < 1 || in[0].dims[0] < 1 || in[1].dtype != DType::kI32) {
    throw GraphError(op.name + ": gather of rows " + to_string(in[1]) + " of " + to_string(in[0]) +
                     " (allowed: i32 indices, at least one row)");
  }
  TensorType out{in[0].dtype, in[1].dims};
  out.dims.insert(out.dims.end(), in[0].dims.begin() + 1, in[0].dims.end());
  return out;
}
void gradient_gather(GradientArgs& g) {
  g.d[0] = g.b.scatter_add(g.op.operands[1], g.dy, g.b.type(g.op.operands[0]).dims, "grad_scatter");
}

TensorType infer_sort_order(const Op& op, std::span<const TensorType> in) {
  if (in[0].rank() < 1 || in[0].dtype != DType::kI32) {
    throw GraphError(op.name + ": sort_order of " + to_string(in[0]) +
                     " (allowed: i32 of at least one dimension)");
  }
  return in[0];
}

TensorType infer_same(const Op&, std::span<const TensorType> in) { return in[0]; }
void gradient_negate(GradientArgs& g) { g.d[0] = g.b.unary(OpKind::kNegate, g.dy, "grad_negate"); }
void gradient_abs(GradientArgs& g) {
  const ValueId x = g.op.operands[0];
  const ValueId zero = g.b.broadcast_scalar(g.b.constant(0, g.b.type(x).dtype, "zero"), x, "zeros");
  const ValueId positive = g.b.compare(CompareKind::kGt, x, zero, "positive");
  const ValueId negative = g.b.compare(CompareKind::kLt, x, zero, "negative");
  const ValueId flipped = g.b.unary(OpKind::kNegate, g.dy, "grad_negate");
  g.d[0] = g.b.select(positive, g.dy, g.b.select(negative, flipped, zero, "grad_negative"), "grad");
}

}  // namespace

OpDef movement_def(OpKind kind) {
  switch (kind) {
    case OpKind::kBroadcastInDim:
      return {infer_broadcast, gradient_broadcast};
    case OpKind::kReshape:
      return {infer_reshape, gradient_reshape};
    case OpKind::kTranspose:
      return {infer_transpose, gradient_transpose};
    case OpKind::kSelect:
      return {infer_select, gradient_select};
    case OpKind::kConcatenate:
      return {infer_concatenate, gradient_concatenate};
    case OpKind::kSlice:
      return {infer_slice, gradient_slice};
    case OpKind::kPad:
      return {infer_pad, gradient_pad};
    case OpKind::kGather:
      return {infer_gather, gradient_gather};
    case OpKind::kSortOrder:
      return {infer_sort_order};
    case OpKind::kNegate:
      return {infer_same, gradient_negate};
    default:
      return {infer_same, gradient_abs};
  }
}

}  // namespace twinrun
