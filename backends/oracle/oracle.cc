#include "backends/oracle.h"

#include <algorithm>
#include <cmath>

#include "backends/oracle/internal.h"

namespace twinrun {

OracleResult eval_op(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                     ThreadPool* pool) {
  OracleResult result;
  const auto n = static_cast<size_t>(op.type.elements());
  result.value.resize(n);
  result.radius.resize(n);
  const bool wide = std::ranges::any_of(inputs, [](const Tensor& t) { return t.dtype() == DType::kF64; });
  const oracle::Call call{declared, op, inputs, pool, result, wide};
  switch (op.kind) {
    case OpKind::kParameter:  // given, not computed: nothing to hold it against
      std::fill(result.radius.begin(), result.radius.end(), oracle::kInfinity);
      break;
    case OpKind::kConstant:
    case OpKind::kIota:
    case OpKind::kRngUniform:
      oracle::eval_source(call);
      break;
    case OpKind::kBroadcastInDim:
    case OpKind::kReshape:
    case OpKind::kTranspose:
    case OpKind::kSelect:
    case OpKind::kNegate:
    case OpKind::kAbs:
      oracle::eval_move(call);
      break;
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
      oracle::eval_elementwise(call);
      break;
    case OpKind::kDotGeneral:
    case OpKind::kConvolution:
    case OpKind::kConvolutionInputGrad:
    case OpKind::kConvolutionKernelGrad:
      oracle::eval_dot(call);
      break;
    case OpKind::kReduce:
      oracle::eval_reduce(call);
      break;
    case OpKind::kReduceWindow:
    case OpKind::kSelectAndScatter:
    case OpKind::kAvgPoolGrad:
      oracle::eval_window(call);
      break;
    case OpKind::kAllReduce:
      oracle::eval_all_reduce(call);
      break;
  }
  return result;
}

OracleVerdict judge(const OracleResult& oracle, const Tensor& subject) {
  OracleVerdict verdict;
  verdict.elements = subject.elements();
  for (int64_t i = 0; i < verdict.elements; ++i) {
    const double value = oracle.value[static_cast<size_t>(i)];
    const double radius = oracle.radius[static_cast<size_t>(i)];
    const double x = oracle::element(subject, i);
    if (!oracle::finite(radius)) {
      ++verdict.untestable;
      continue;
    }
    double ratio;
    if (x == value || (x != x && value != value)) {  // +0 and -0 are one number here
      ratio = 0;
    } else if (!oracle::finite(x) || !oracle::finite(value)) {
      ratio = oracle::kInfinity;
    } else {
      ratio = radius > 0 ? std::fabs(x - value) / radius : oracle::kInfinity;
    }
    if (ratio > 1) ++verdict.outside;
    if (verdict.worst_element < 0 || ratio > verdict.worst) {
      verdict.worst = ratio;
      verdict.worst_element = i;
      verdict.subject = x;
      verdict.value = value;
      verdict.radius = radius;
    }
  }
  return verdict;
}

}  // namespace twinrun
