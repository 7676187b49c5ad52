// all_reduce: the sum over replicas, which every replica gets.
#include "program/ops/op_def.h"

namespace twinrun {
namespace {

TensorType infer_all_reduce(const Op&, std::span<const TensorType> in) { return in[0]; }
// Each replica's result depends on the operands of all replicas, so the cotangents are summed too.
void gradient_all_reduce(GradientArgs& g) { g.d[0] = g.b.all_reduce(g.dy, "grad_all_reduce"); }

}  // namespace

OpDef collective_def(OpKind) { return {infer_all_reduce, gradient_all_reduce}; }

}  // namespace twinrun
