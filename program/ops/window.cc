// Pooling (reduce_window) and its gradients (select_and_scatter, avg_pool_grad).
#include "program/ops/op_def.h"

namespace twinrun {
namespace {

TensorType infer_reduce_window(const Op& op, std::span<const TensorType> in) {
  if (in[0].rank() != 4)
    throw GraphError(op.name + ": pooling of " + to_string(in[0]) + " (allowed: rank 4)");
  const Window& w = op.attrs.window;
  const Dims out{in[0].dims[0], w.out(in[0].dims[1], 0), w.out(in[0].dims[2], 1), in[0].dims[3]};
  if (out[1] < 1 || out[2] < 1) {
    throw GraphError(op.name + ": a " + std::to_string(w.size[0]) + "x" +
                     std::to_string(w.size[1]) + " window does not fit into " + to_string(in[0]));
  }
  return {in[0].dtype, out};
}
void gradient_reduce_window(GradientArgs& g) {
  const ValueId x = g.op.operands[0];
  g.d[0] = g.op.attrs.reducer == Reducer::kMax
               ? g.b.select_and_scatter(x, g.dy, g.op.attrs.window, "grad_input")
               : g.b.avg_pool_grad(g.dy, g.b.type(x).dims, g.op.attrs.window, "grad_input");
}

double flops_of_reduce_window(const Graph&, const Op& op) {
  const Window& w = op.attrs.window;
  return static_cast<double>(op.type.elements()) * static_cast<double>(w.size[0] * w.size[1]);
}

TensorType infer_select_and_scatter(const Op&, std::span<const TensorType> in) { return in[0]; }
TensorType infer_avg_pool_grad(const Op& op, std::span<const TensorType> in) {
  return {in[0].dtype, op.attrs.shape};
}

}  // namespace

OpDef window_def(OpKind kind) {
  switch (kind) {
    case OpKind::kReduceWindow:
      return {infer_reduce_window, gradient_reduce_window, flops_of_reduce_window};
    case OpKind::kSelectAndScatter:
      return {infer_select_and_scatter};
    default:
      return {infer_avg_pool_grad};
  }
}

}  // namespace twinrun
