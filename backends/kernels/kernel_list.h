// The kernels by family, each in the file of its name; kernels.cc chooses among them by op kind.
#pragma once

#include <span>

#include "backends/kernels/kernels.h"

namespace twinrun {

using Inputs = std::span<const Tensor>;

void run_dot(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output);
void run_convolution(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output);
void run_convolution_kernel_grad(const KernelContext& context, const Op& op, Inputs inputs,
                                 Tensor& output);
void run_elementwise(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output);
void run_movement(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output);
void run_grouped_convolution(const KernelContext& context, const Op& op, Inputs inputs,
                             Tensor& output);
// Regards a tensor as stretches of bytes, one for each index of the dimensions before `axis`.
// Copies n bytes of each stretch of x, from offset `from`, to offset `to` in the stretch of the
// output.
void copy_stretches(const KernelContext& context, const Tensor& x, size_t axis, int64_t from,
                    int64_t to, int64_t n, Tensor& output);
void run_rows(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output);
void run_scatter_add(const KernelContext& context, Inputs inputs, Tensor& output);
void run_reduce(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output);
void run_window(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output);
void run_rng_uniform(const KernelContext& context, const Op& op, Inputs inputs, Tensor& output);

}  // namespace twinrun
