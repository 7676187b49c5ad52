// parameter, constant, iota: values that come from outside the graph or from attributes alone.
#include "program/ops/op_def.h"

namespace twinrun {
namespace {

TensorType infer_parameter(const Op& op, std::span<const TensorType>) { return op.type; }

TensorType infer_constant(const Op& op, std::span<const TensorType>) {
  return {op.attrs.dtype, op.attrs.shape};
}

TensorType infer_iota(const Op& op, std::span<const TensorType>) {
  if (op.attrs.dims.size() != 1 || op.attrs.dims[0] < 0 ||
      op.attrs.dims[0] >= static_cast<int64_t>(op.attrs.shape.size())) {
    throw GraphError(op.name + ": iota needs one dimension inside its shape");
  }
  return {op.attrs.dtype, op.attrs.shape};
}

}  // namespace

OpDef source_def(OpKind kind) {
  switch (kind) {
    case OpKind::kParameter:
      return {infer_parameter};
    case OpKind::kConstant:
      return {infer_constant};
    default:
      return {infer_iota};
  }
}

}  // namespace twinrun
