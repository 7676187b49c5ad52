// Elementwise ops, one rounding per node: arithmetic, comparison, conversion, elementary functions.
#include "program/ops/op_def.h"

namespace twinrun {
namespace {

TensorType infer_unary(const Op& op, std::span<const TensorType> in) {
  if (!is_floating(in[0].dtype)) {
    throw GraphError(op.name + ": " + std::string(name_of(op.kind)) + " of " + to_string(in[0]) +
                     " (allowed: f32, bf16)");
  }
  return in[0];
}

TensorType infer_binary(const Op& op, std::span<const TensorType> in) {
  if (in[0] != in[1]) {
    throw GraphError(op.name + ": " + std::string(name_of(op.kind)) + " of " + to_string(in[0]) +
                     " and " + to_string(in[1]));
  }
  if (!is_floating(in[0].dtype) && in[0].dtype != DType::kI32) {
    throw GraphError(op.name + ": " + std::string(name_of(op.kind)) + " of " +
                     to_string(in[0].dtype).data());
  }
  return in[0];
}

TensorType infer_integers(const Op& op, std::span<const TensorType> in) {
  if (in[0] != in[1] || in[0].dtype != DType::kI32) {
    throw GraphError(op.name + ": " + std::string(name_of(op.kind)) + " of " + to_string(in[0]) +
                     " and " + to_string(in[1]) + " (allowed: i32)");
  }
  return in[0];
}

TensorType infer_bitcast(const Op& op, std::span<const TensorType> in) {
  const DType from = in[0].dtype, to = op.attrs.dtype;
  if (!(from == DType::kF32 && to == DType::kI32) && !(from == DType::kI32 && to == DType::kF32)) {
    throw GraphError(op.name + ": bitcast_convert of " + to_string(in[0]) + " to " +
                     std::string(to_string(to)) + " (allowed: f32 to i32, i32 to f32)");
  }
  return {to, in[0].dims};
}

TensorType infer_compare(const Op& op, std::span<const TensorType> in) {
  if (in[0] != in[1]) {
    throw GraphError(op.name + ": compare of " + to_string(in[0]) + " and " + to_string(in[1]));
  }
  return {DType::kPred, in[0].dims};
}

TensorType infer_convert(const Op& op, std::span<const TensorType> in) {
  return {op.attrs.dtype, in[0].dims};
}

ValueId like(GradientArgs& g, double value, ValueId x, std::string_view local) {
  return g.b.broadcast_scalar(g.b.constant(value, g.b.type(x).dtype, local), x,
                              std::string(local) + "s");
}

void gradient_add(GradientArgs& g) { g.d[0] = g.d[1] = g.dy; }
void gradient_subtract(GradientArgs& g) {
  g.d[0] = g.dy;
  g.d[1] = g.b.unary(OpKind::kNegate, g.dy, "grad_rhs");
}
void gradient_multiply(GradientArgs& g) {
  g.d[0] = g.b.mul(g.dy, g.op.operands[1], "grad_lhs");
  g.d[1] = g.b.mul(g.dy, g.op.operands[0], "grad_rhs");
}
// d(a/b): dy/b and -(dy/b)*(a/b)
void gradient_divide(GradientArgs& g) {
  g.d[0] = g.b.div(g.dy, g.op.operands[1], "grad_lhs");
  g.d[1] = g.b.unary(OpKind::kNegate, g.b.mul(g.d[0], g.self, "grad_product"), "grad_rhs");
}
// The gradient goes to the operand that was chosen. Ties go to the second, so that relu =
// maximum(x, 0) passes the gradient only where x > 0. The mask compares the result y instead of the
// first operand, which then need not be kept for the backward pass: y > b exactly where a > b, NaNs
// and zeros included.
void gradient_extremum(GradientArgs& g) {
  const auto kind = g.op.kind == OpKind::kMaximum ? CompareKind::kGt : CompareKind::kLt;
  const ValueId mask = g.b.compare(kind, g.self, g.op.operands[1], "grad_mask");
  const ValueId zeros = like(g, 0, g.dy, "zero");
  g.d[0] = g.b.select(mask, g.dy, zeros, "grad_lhs");
  g.d[1] = g.b.select(mask, zeros, g.dy, "grad_rhs");
}
// d sqrt = dy / (2 y)
void gradient_sqrt(GradientArgs& g) {
  g.d[0] = g.b.div(g.dy, g.b.mul(g.self, like(g, 2, g.self, "two"), "twice"), "grad");
}
// d rsqrt = -1/2 y^3 dy
void gradient_rsqrt(GradientArgs& g) {
  const ValueId cube = g.b.mul(g.b.mul(g.self, g.self, "square"), g.self, "cube");
  g.d[0] = g.b.mul(g.dy, g.b.mul(cube, like(g, -0.5, cube, "minus_half"), "slope"), "grad");
}
void gradient_exponential(GradientArgs& g) { g.d[0] = g.b.mul(g.dy, g.self, "grad"); }
void gradient_log(GradientArgs& g) { g.d[0] = g.b.div(g.dy, g.op.operands[0], "grad"); }
// d tanh = (1 - y^2) dy
void gradient_tanh(GradientArgs& g) {
  const ValueId slope =
      g.b.sub(like(g, 1, g.self, "one"), g.b.mul(g.self, g.self, "square"), "slope");
  g.d[0] = g.b.mul(g.dy, slope, "grad");
}
// d logistic = y (1 - y) dy
void gradient_logistic(GradientArgs& g) {
  const ValueId slope =
      g.b.mul(g.self, g.b.sub(like(g, 1, g.self, "one"), g.self, "rest"), "slope");
  g.d[0] = g.b.mul(g.dy, slope, "grad");
}
// d erf = 2 / sqrt(pi) * exp(-x^2) dy
void gradient_erf(GradientArgs& g) {
  const ValueId x = g.op.operands[0];
  const ValueId square = g.b.mul(x, x, "square");
  const ValueId bell =
      g.b.unary(OpKind::kExponential, g.b.unary(OpKind::kNegate, square, "minus_square"), "bell");
  const ValueId slope =
      g.b.mul(like(g, 0x1.20dd750429b6dp+0, x, "two_over_sqrt_pi"), bell, "slope");
  g.d[0] = g.b.mul(g.dy, slope, "grad");
}
// d log1p = dy / (1 + x)
void gradient_log1p(GradientArgs& g) {
  const ValueId x = g.op.operands[0];
  g.d[0] = g.b.div(g.dy, g.b.add(like(g, 1, x, "one"), x, "one_plus"), "grad");
}
void gradient_sine(GradientArgs& g) {
  g.d[0] = g.b.mul(g.dy, g.b.unary(OpKind::kCosine, g.op.operands[0], "slope"), "grad");
}
// d cos = -sin(x) dy
void gradient_cosine(GradientArgs& g) {
  const ValueId sine = g.b.unary(OpKind::kSine, g.op.operands[0], "grad_sine");
  g.d[0] = g.b.mul(g.dy, g.b.unary(OpKind::kNegate, sine, "slope"), "grad");
}
void gradient_convert(GradientArgs& g) {
  const DType from = g.b.type(g.op.operands[0]).dtype;
  if (is_floating(from) && is_floating(g.op.attrs.dtype))
    g.d[0] = g.b.convert(g.dy, from, "grad_convert");
}

}  // namespace

OpDef elementwise_def(OpKind kind) {
  switch (kind) {
    case OpKind::kAdd:
      return {infer_binary, gradient_add};
    case OpKind::kSubtract:
      return {infer_binary, gradient_subtract};
    case OpKind::kMultiply:
      return {infer_binary, gradient_multiply};
    case OpKind::kDivide:
      return {infer_binary, gradient_divide};
    case OpKind::kMaximum:
    case OpKind::kMinimum:
      return {infer_binary, gradient_extremum};
    case OpKind::kCompare:
      return {infer_compare};
    case OpKind::kConvert:
      return {infer_convert, gradient_convert};
    case OpKind::kAnd:
    case OpKind::kOr:
    case OpKind::kXor:
    case OpKind::kShiftLeft:
    case OpKind::kShiftRightLogical:
    case OpKind::kShiftRightArithmetic:
    case OpKind::kRemainder:
      return {infer_integers};
    case OpKind::kBitcastConvert:
      return {infer_bitcast};
    case OpKind::kSine:
      return {infer_unary, gradient_sine};
    case OpKind::kCosine:
      return {infer_unary, gradient_cosine};
    case OpKind::kSqrt:
      return {infer_unary, gradient_sqrt};
    case OpKind::kRsqrt:
      return {infer_unary, gradient_rsqrt};
    case OpKind::kExponential:
      return {infer_unary, gradient_exponential};
    case OpKind::kLog:
      return {infer_unary, gradient_log};
    case OpKind::kTanh:
      return {infer_unary, gradient_tanh};
    case OpKind::kErf:
      return {infer_unary, gradient_erf};
    case OpKind::kLog1p:
      return {infer_unary, gradient_log1p};
    default:
      return {infer_unary, gradient_logistic};
  }
}

}  // namespace twinrun
