// reduce: sum, max, mean over dimensions.
#include <algorithm>

#include "program/ops/op_def.h"

namespace twinrun {
namespace {

TensorType infer_reduce(const Op& op, std::span<const TensorType> in) {
  Dims out;
  for (int64_t i = 0; i < in[0].rank(); ++i) {
    if (std::find(op.attrs.dims.begin(), op.attrs.dims.end(), i) == op.attrs.dims.end()) {
      out.push_back(in[0].dims[static_cast<size_t>(i)]);
    }
  }
  if (out.size() + op.attrs.dims.size() != in[0].dims.size()) {
    throw GraphError(op.name + ": reduce of " + to_string(in[0]) + " over " +
                     to_string(op.attrs.dims));
  }
  return {in[0].dtype, out};
}

// sum: dy repeated; mean: dy / N repeated. max carries no gradient here (softmax's shift is a constant).
void gradient_reduce(GradientArgs& g) {
  if (g.op.attrs.reducer == Reducer::kMax) {
    throw GraphError(g.op.name + ": reduce max has no gradient; mark it stop_gradient");
  }
  const TensorType x = g.b.type(g.op.operands[0]);
  Dims kept;
  int64_t count = 1;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (std::find(g.op.attrs.dims.begin(), g.op.attrs.dims.end(), i) == g.op.attrs.dims.end()) {
      kept.push_back(i);
    } else {
      count *= x.dims[static_cast<size_t>(i)];
    }
  }
  ValueId dy = g.dy;
  if (g.op.attrs.reducer == Reducer::kMean) {
    dy = g.b.binary_scalar(OpKind::kDivide, dy, static_cast<double>(count), "grad_mean");
  }
  g.d[0] = g.b.broadcast(dy, x.dims, kept, g.b.graph().op(g.op.operands[0]).batched, "grad");
}

}  // namespace

OpDef reduce_def(OpKind) { return {infer_reduce, gradient_reduce}; }

}  // namespace twinrun
