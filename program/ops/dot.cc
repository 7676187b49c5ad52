// dot_general and the three convolutions: what a matrix unit computes.
#include <algorithm>

#include "program/ops/op_def.h"

namespace twinrun {
namespace {

TensorType infer_dot(const Op& op, std::span<const TensorType> in) {
  const auto batch = static_cast<size_t>(op.attrs.batch_dims);
  const bool ranks = in[0].dims.size() == batch + 2 && in[1].dims.size() == batch + 2;
  if (!ranks || in[0].dtype != in[1].dtype ||
      !std::equal(in[0].dims.begin(), in[0].dims.end() - 2, in[1].dims.begin())) {
    throw GraphError(op.name + ": dot_general of " + to_string(in[0]) + " and " + to_string(in[1]) +
                     (batch == 0 ? " (allowed: two matrices of one dtype)"
                                 : " (allowed: matrices of one dtype under " +
                                       std::to_string(batch) + " equal dimensions)"));
  }
  const auto size = [&](size_t operand, int dimension) {
    return in[operand].dims[batch + static_cast<size_t>(dimension)];
  };
  const int64_t ka = size(0, op.attrs.lhs_contract), kb = size(1, op.attrs.rhs_contract);
  if (ka != kb) {
    throw GraphError(op.name + ": contracted sizes " + std::to_string(ka) + " and " +
                     std::to_string(kb) + " differ");
  }
  Dims dims(in[0].dims.begin(), in[0].dims.end() - 2);
  dims.push_back(size(0, 1 - op.attrs.lhs_contract));
  dims.push_back(size(1, 1 - op.attrs.rhs_contract));
  return {in[0].dtype, dims};
}

// With c = a . b: da contracts dy's columns with b's free dimension, db contracts a's free
// dimension with dy's rows.
void gradient_dot(GradientArgs& g) {
  const ValueId a = g.op.operands[0], b = g.op.operands[1];
  const int la = g.op.attrs.lhs_contract, lb = g.op.attrs.rhs_contract, n = g.op.attrs.batch_dims;
  g.d[0] = la == 1 ? g.b.dot(g.dy, b, 1, 1 - lb, "grad_lhs", n)
                   : g.b.dot(b, g.dy, 1 - lb, 1, "grad_lhs", n);
  g.d[1] = lb == 0 ? g.b.dot(a, g.dy, 1 - la, 0, "grad_rhs", n)
                   : g.b.dot(g.dy, a, 0, 1 - la, "grad_rhs", n);
}

void check_image(const Op& op, const TensorType& t, const char* what) {
  if (t.rank() != 4) {
    throw GraphError(op.name + ": " + what + " is " + to_string(t) + " (allowed: rank 4)");
  }
}

TensorType infer_convolution(const Op& op, std::span<const TensorType> in) {
  check_image(op, in[0], "input");
  check_image(op, in[1], "kernel");
  const Window& w = op.attrs.window;
  const int64_t groups = op.attrs.groups;
  if (groups < 1 || in[0].dims[3] != in[1].dims[2] * groups || in[1].dims[3] % groups != 0 ||
      in[1].dims[0] != w.size[0] || in[1].dims[1] != w.size[1]) {
    throw GraphError(op.name + ": convolution of " + to_string(in[0]) + " with " +
                     to_string(in[1]) +
                     (groups == 1 ? "" : " in " + std::to_string(groups) + " groups"));
  }
  const TensorType out{
      in[0].dtype,
      {in[0].dims[0], w.out(in[0].dims[1], 0), w.out(in[0].dims[2], 1), in[1].dims[3]}};
  if (out.dims[1] < 1 || out.dims[2] < 1) {
    throw GraphError(op.name + ": a " + std::to_string(w.size[0]) + "x" +
                     std::to_string(w.size[1]) + " kernel does not fit into " + to_string(in[0]));
  }
  return out;
}
void gradient_convolution(GradientArgs& g) {
  const ValueId x = g.op.operands[0], w = g.op.operands[1];
  g.d[0] = g.b.convolution_input_grad(g.dy, w, g.b.type(x).dims, g.op.attrs.window, "grad_input",
                                      g.op.attrs.groups);
  g.d[1] = g.b.convolution_kernel_grad(x, g.dy, g.b.type(w).dims, g.op.attrs.window, "grad_kernel",
                                       g.op.attrs.groups);
}
// x = input_grad(dy, w) may be a layer of its own (a transposed convolution). It is linear in both
// operands: the gradient of dy is the convolution of the cotangent, that of w the kernel gradient
// with the cotangent as the image.
void gradient_input_grad(GradientArgs& g) {
  const ValueId dy = g.op.operands[0], w = g.op.operands[1];
  g.d[0] = g.b.convolution(g.dy, w, g.op.attrs.window, "grad_input", g.op.attrs.groups);
  g.d[1] = g.b.convolution_kernel_grad(g.dy, dy, g.b.type(w).dims, g.op.attrs.window, "grad_kernel",
                                       g.op.attrs.groups);
}

TensorType infer_input_grad(const Op& op, std::span<const TensorType> in) {
  check_image(op, in[0], "gradient");
  check_image(op, in[1], "kernel");
  const Dims& x = op.attrs.shape;
  const Dims& w = in[1].dims;
  const Window& window = op.attrs.window;
  if (x.size() != 4 || in[0].dims != Dims{x[0], window.out(x[1], 0), window.out(x[2], 1), w[3]} ||
      x[3] != w[2] * op.attrs.groups) {
    throw GraphError(op.name + ": " + to_string(in[0]) + " is not the result of a convolution of " +
                     to_string(x) + " with " + to_string(in[1]));
  }
  return {in[0].dtype, op.attrs.shape};
}
TensorType infer_kernel_grad(const Op& op, std::span<const TensorType> in) {
  check_image(op, in[0], "input");
  check_image(op, in[1], "gradient");
  return {in[0].dtype, op.attrs.shape};
}

// Two per product of an element of `operand` (the result, if it is -1) with each of `terms`.
double two_per_term(const Graph& graph, const Op& op, int operand, int64_t terms) {
  const TensorType& type =
      operand < 0 ? op.type : graph.type(op.operands[static_cast<size_t>(operand)]);
  return 2 * static_cast<double>(type.elements()) * static_cast<double>(terms);
}
double flops_of_dot(const Graph& graph, const Op& op) {
  const Dims& a = graph.type(op.operands[0]).dims;
  return two_per_term(graph, op, -1,
                      a[static_cast<size_t>(op.attrs.batch_dims + op.attrs.lhs_contract)]);
}
double flops_of_convolution(const Graph& graph, const Op& op) {
  const Dims& w = graph.type(op.operands[1]).dims;
  return two_per_term(graph, op, -1, w[0] * w[1] * w[2]);
}
double flops_of_input_grad(const Graph& graph, const Op& op) {
  const Dims& w = graph.type(op.operands[1]).dims;
  return two_per_term(graph, op, 0, w[0] * w[1] * w[2]);
}
double flops_of_kernel_grad(const Graph& graph, const Op& op) {
  const Dims& w = op.type.dims;
  return two_per_term(graph, op, 1, w[0] * w[1] * w[2]);
}

}  // namespace

OpDef dot_def(OpKind kind) {
  switch (kind) {
    case OpKind::kDotGeneral:
      return {infer_dot, gradient_dot, flops_of_dot};
    case OpKind::kConvolution:
      return {infer_convolution, gradient_convolution, flops_of_convolution};
    case OpKind::kConvolutionInputGrad:
      return {infer_input_grad, gradient_input_grad, flops_of_input_grad};
    default:
      return {infer_kernel_grad, nullptr, flops_of_kernel_grad};
  }
}

}  // namespace twinrun
