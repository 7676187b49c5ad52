// rng_uniform is counter-based: its bits depend only on (seed, stream, step, sample, element).
#include "program/ops/op_def.h"

namespace twinrun {
namespace {

TensorType infer_rng(const Op& op, std::span<const TensorType> in) {
  if (in[0] != TensorType{DType::kI32, {}} || in[1].dtype != DType::kI32 || in[1].rank() != 1 ||
      op.attrs.shape.empty() || op.attrs.shape[0] != in[1].dims[0]) {
    throw GraphError(op.name +
                     ": rng_uniform needs i32[] step and i32[n] sample_ids for shape [n, ...]");
  }
  return {DType::kF32, op.attrs.shape};
}

}  // namespace

OpDef random_def(OpKind) { return {infer_rng}; }

}  // namespace twinrun
