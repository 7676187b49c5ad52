// Chooses the kernel of an op by its kind.
#include "backends/kernels/kernels.h"

#include <cassert>

#include "backends/kernels/kernel_list.h"

namespace twinrun {

void run_kernel(const KernelContext& context, const Op& op, std::span<const Tensor> inputs,
                Tensor& output) {
  if (op.attrs.groups > 1) return run_grouped_convolution(context, op, inputs, output);
  switch (op.kind) {
    case OpKind::kConstant:
    case OpKind::kIota:
    case OpKind::kBroadcastInDim:
    case OpKind::kReshape:
    case OpKind::kTranspose:
      return run_movement(context, op, inputs, output);
    case OpKind::kConcatenate:
    case OpKind::kSlice:
    case OpKind::kPad:
    case OpKind::kGather:
    case OpKind::kSortOrder:
      return run_rows(context, op, inputs, output);
    case OpKind::kScatterAdd:
      return run_scatter_add(context, inputs, output);
    case OpKind::kSelect:
    case OpKind::kNegate:
    case OpKind::kAbs:
    case OpKind::kConvert:
    case OpKind::kAdd:
    case OpKind::kSubtract:
    case OpKind::kMultiply:
    case OpKind::kDivide:
    case OpKind::kMaximum:
    case OpKind::kMinimum:
    case OpKind::kCompare:
    case OpKind::kSqrt:
    case OpKind::kRsqrt:
    case OpKind::kExponential:
    case OpKind::kLog:
    case OpKind::kTanh:
    case OpKind::kLogistic:
    case OpKind::kErf:
    case OpKind::kLog1p:
    case OpKind::kAnd:
    case OpKind::kOr:
    case OpKind::kXor:
    case OpKind::kShiftLeft:
    case OpKind::kShiftRightLogical:
    case OpKind::kShiftRightArithmetic:
    case OpKind::kRemainder:
    case OpKind::kBitcastConvert:
    case OpKind::kSine:
    case OpKind::kCosine:
      return run_elementwise(context, op, inputs, output);
    case OpKind::kDotGeneral:
      return run_dot(context, op, inputs, output);
    case OpKind::kConvolution:
    case OpKind::kConvolutionInputGrad:
      return run_convolution(context, op, inputs, output);
    case OpKind::kConvolutionKernelGrad:
      return run_convolution_kernel_grad(context, op, inputs, output);
    case OpKind::kReduce:
      return run_reduce(context, op, inputs, output);
    case OpKind::kReduceWindow:
    case OpKind::kSelectAndScatter:
    case OpKind::kAvgPoolGrad:
      return run_window(context, op, inputs, output);
    case OpKind::kRngUniform:
      return run_rng_uniform(context, op, inputs, output);
    case OpKind::kParameter:
    case OpKind::kAllReduce:
      break;
  }
  assert(false && "parameter has no kernel; all_reduce has all_reduce_sum");
}

}  // namespace twinrun
