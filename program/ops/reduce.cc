// reduce: sum, max or mean over dimensions; scatter_add: sums of the rows that have the same index.
#include "program/ops/op_def.h"

namespace twinrun {
namespace {

TensorType infer_reduce(const Op& op, std::span<const TensorType> in) {
  Dims out;
  for (int64_t i : other_dims(in[0].rank(), op.attrs.dims))
    out.push_back(in[0].dims[static_cast<size_t>(i)]);
  if (out.size() + op.attrs.dims.size() != in[0].dims.size()) {
    throw GraphError(op.name + ": reduce of " + to_string(in[0]) + " over " +
                     to_string(op.attrs.dims));
  }
  return {in[0].dtype, out};
}

// sum: dy repeated; mean: dy / N repeated; max: dy / (number of maxima) at each maximum, as
// TensorFlow's _MinOrMaxGrad computes it.
void gradient_reduce(GradientArgs& g) {
  const TensorType x = g.b.type(g.op.operands[0]);
  const Dims kept = other_dims(x.rank(), g.op.attrs.dims);
  ValueId dy = g.dy;
  if (g.op.attrs.reducer == Reducer::kMax) {
    const ValueId in = g.op.operands[0];
    const ValueId largest = g.b.broadcast(g.self, x.dims, kept, "grad_largest");
    const ValueId mask = g.b.compare(CompareKind::kEq, in, largest, "grad_mask");
    const ValueId ties = g.b.reduce(g.b.convert(mask, x.dtype, "grad_is_largest"), g.op.attrs.dims,
                                    Reducer::kSum, "grad_ties");
    const ValueId share =
        g.b.broadcast(g.b.div(dy, ties, "grad_share"), x.dims, kept, "grad_shares");
    const ValueId zero = g.b.broadcast_scalar(g.b.constant(0, x.dtype, "zero"), in, "zeros");
    g.d[0] = g.b.select(mask, share, zero, "grad");
    return;
  }
  if (g.op.attrs.reducer == Reducer::kMean) {
    double count = 1;
    for (int64_t i : g.op.attrs.dims) count *= static_cast<double>(x.dims[static_cast<size_t>(i)]);
    dy = g.b.binary_scalar(OpKind::kDivide, dy, count, "grad_mean");
  }
  g.d[0] = g.b.broadcast(dy, x.dims, kept, "grad");
}

TensorType infer_scatter_add(const Op& op, std::span<const TensorType> in) {
  const Dims& rows = op.attrs.shape;
  Dims expected = in[0].dims;
  if (!rows.empty()) expected.insert(expected.end(), rows.begin() + 1, rows.end());
  if (rows.empty() || rows[0] < 1 || in[0].dtype != DType::kI32 || in[1].dims != expected) {
    throw GraphError(op.name + ": scatter_add of " + to_string(in[1]) + " by indices " +
                     to_string(in[0]) + " into " + to_string(rows));
  }
  return {in[1].dtype, rows};
}
void gradient_scatter_add(GradientArgs& g) {
  g.d[1] = g.b.gather(g.dy, g.op.operands[0], "grad_gather");
}

// One addition per element of the last operand.
double flops_of_sums(const Graph& graph, const Op& op) {
  return static_cast<double>(graph.type(op.operands.back()).elements());
}

}  // namespace

OpDef reduce_def(OpKind kind) {
  if (kind == OpKind::kScatterAdd) return {infer_scatter_add, gradient_scatter_add, flops_of_sums};
  return {infer_reduce, gradient_reduce, flops_of_sums};
}

}  // namespace twinrun
