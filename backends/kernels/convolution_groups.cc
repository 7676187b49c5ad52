// Grouped convolutions and their gradients: every operand and the result is cut along its last dimension, and part g of the
// result is the convolution of the parts g.
#include <cstring>

#include "backends/kernels/arithmetic.h"
#include "backends/kernels/kernel_list.h"

namespace twinrun {
namespace {

// Copies columns of the last dimension: to[:, to_column + i] = from[:, from_column + i] for i < n.
void copy_columns(const KernelContext& context, const Tensor& from, int64_t from_column, Tensor& to,
                  int64_t to_column, int64_t n) {
  const auto size = static_cast<int64_t>(size_of(from.dtype()));
  const int64_t in = from.dims().back() * size, out = to.dims().back() * size;
  for_ranges(context, from.elements() / from.dims().back(), n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      std::memcpy(to.raw() + i * out + to_column * size, from.raw() + i * in + from_column * size,
                  static_cast<size_t>(n * size));
  });
}

TensorType part_of(TensorType type, int64_t groups) {
  type.dims.back() /= groups;
  return type;
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
      const int64_t n = operands[i].dims().back();
      copy_columns(context, inputs[i], g * n, operands[i], 0, n);
    }
    run_kernel(context, part, operands, result);
    const int64_t n = part.type.dims.back();
    copy_columns(context, result, 0, output, g * n, n);
  }
}

}  // namespace twinrun
