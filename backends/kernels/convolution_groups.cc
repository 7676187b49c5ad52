// Grouped convolutions and their gradients: every operand and the result is cut along its last
// dimension, and part g of the result is the convolution of part g of each operand.
#include "backends/kernels/kernel_list.h"

namespace twinrun {
namespace {

TensorType part_of(TensorType type, int64_t groups) {
  type.dims.back() /= groups;
  return type;
}

int64_t bytes_of_last(const Tensor& t) {
  return t.dims().back() * static_cast<int64_t>(size_of(t.dtype()));
}

}  // namespace

void run_grouped_convolution(const KernelContext& context, const Op& op, Inputs inputs,
                             Tensor& output) {
  if (output.elements() == 0) return;
  const int64_t groups = op.attrs.groups;
  Op part = op;
  part.attrs.groups = 1;
  part.type = part_of(op.type, groups);
  if (!part.attrs.shape.empty()) part.attrs.shape = part.type.dims;
  Tensor operands[2] = {Tensor::empty(part_of(inputs[0].type(), groups)),
                        Tensor::empty(part_of(inputs[1].type(), groups))};
  Tensor result = Tensor::empty(part.type);
  for (int64_t g = 0; g < groups; ++g) {
    for (size_t i = 0; i < 2; ++i) {
      const int64_t n = bytes_of_last(operands[i]);
      copy_stretches(context, inputs[i], inputs[i].dims().size() - 1, g * n, 0, n, operands[i]);
    }
    run_kernel(context, part, operands, result);
    const int64_t n = bytes_of_last(result);
    copy_stretches(context, result, result.dims().size() - 1, 0, g * n, n, output);
  }
}

}  // namespace twinrun
