// The value of an op over the field, by kind of op, and the degrees of a program's values.
#include "backends/oracle/field.h"

#include <algorithm>

#include "backends/oracle/field_internal.h"

namespace twinrun {
namespace {

using oracle::field_of;
using oracle::field_type;
using oracle::in_field;

constexpr uint64_t kUniform = 0x756e69666f726d;

Tensor splat(const Op& op, Field61 x) {
  Tensor out = Tensor::empty(field_type(op.type.dims));
  std::ranges::fill(out.as<Field61>(), x);
  return out;
}

Tensor counted_along(const Op& op) {
  Op integers = op;
  integers.attrs.dtype = integers.type.dtype = DType::kI32;
  return field_of(eval_value({}, integers, {}, nullptr));
}

Tensor uniform_numbers(const FieldPoint& point, const Op& op, std::span<const Tensor> operands) {
  Tensor out = Tensor::empty(field_type(op.type.dims));
  const auto samples = operands[1].as<const int32_t>();
  const auto to = out.as<Field61>();
  const size_t per_sample = samples.empty() ? 0 : to.size() / samples.size();
  const auto step = static_cast<uint32_t>(operands[0].as<const int32_t>()[0]);
  uint64_t name = kUniform;
  for (const uint64_t part : {op.attrs.seed, uint64_t{op.attrs.stream}, uint64_t{step}})
    name = FieldPoint::mixed(name + part);
  const FieldPoint::Function drawn = point.function(name);
  for (size_t i = 0; i < to.size(); ++i) {
    const auto sample = static_cast<uint32_t>(samples[i / per_sample]);
    to[i] = drawn(uint64_t{sample} << 32 | (i % per_sample));
  }
  return out;
}

}  // namespace

Result<Tensor> field_value(const FieldPoint& point, const Op& op, std::span<const Tensor> operands,
                           ThreadPool* pool) {
  using namespace oracle;
  const bool floats = is_floating(op.type.dtype) ||
                      std::ranges::any_of(operands, [](const Tensor& t) { return in_field(t); });
  if (!floats) return eval_value({}, op, operands, pool);
  if (op.type.dtype == DType::kI32 && op.kind != OpKind::kConvert)
    return Error{"an integer that depends on a comparison of floats", op.name,
                 "such an integer has no value in a finite field"};
  switch (op.kind) {
    case OpKind::kConstant:
      return splat(op, Field61::constant(op.attrs.value));
    case OpKind::kIota:
      return counted_along(op);
    case OpKind::kRngUniform:
      return uniform_numbers(point, op, operands);
    // Moves treat the words of field elements as binary64 numbers, which keeps their bits.
    case OpKind::kReshape:
      return operands[0].reshaped(op.type.dims);
    case OpKind::kBroadcastInDim:
    case OpKind::kTranspose:
    case OpKind::kSlice:
    case OpKind::kPad:
    case OpKind::kGather:
    case OpKind::kConcatenate: {
      Op words = op;
      words.type.dtype = DType::kF64;
      return eval_value({}, words, operands, pool);
    }
    case OpKind::kDotGeneral:
    case OpKind::kConvolution:
    case OpKind::kConvolutionInputGrad:
    case OpKind::kConvolutionKernelGrad:
      return field_dot(op, operands, pool);
    case OpKind::kReduce:
      return field_reduce(point, op, operands[0], pool);
    case OpKind::kScatterAdd:
      return field_scatter_add(op, operands[0], operands[1]);
    case OpKind::kReduceWindow:
      return field_pooling(point, op, operands[0], pool);
    case OpKind::kSelectAndScatter:
    case OpKind::kAvgPoolGrad:
      return field_unpooling(point, op, operands, pool);
    case OpKind::kAllReduce: {
      Tensor out = operands[0].clone();
      for (const Tensor& part : operands.subspan(1)) {
        for_each_element(pool, out.elements(), [&](int64_t i) {
          Field61& sum = out.as<Field61>()[static_cast<size_t>(i)];
          sum = sum + part.as<const Field61>()[static_cast<size_t>(i)];
        });
      }
      return out;
    }
    default:
      return field_elementwise(point, op, operands, pool);
  }
}

std::vector<double> field_degrees(const Graph& graph) {
  std::vector<double> degrees;
  for (const Op& op : graph.ops()) {
    double most = 0, sum = 0;
    for (ValueId operand : op.operands) {
      const double d = degrees[static_cast<size_t>(operand)];
      most = std::max(most, d);
      sum += d;
    }
    const auto of = [&](size_t i) { return degrees[static_cast<size_t>(op.operands[i])]; };
    double degree = most;
    switch (degree_of(op.kind)) {
      case Degree::kMost:
        break;
      case Degree::kSum:
        degree = sum;
        break;
      case Degree::kQuotient:  // a reciprocal is a variable, unless it is that of a constant
        degree = of(0) + (of(1) > 0 ? 1 : 0);
        break;
      case Degree::kOneMore:  // the maximum is b + (a > b) (a - b)
        degree = most + 1;
        break;
      case Degree::kChoice:
        degree = of(0) + std::max(of(1), of(2));
        break;
      case Degree::kVariable:
        degree = is_floating(op.type.dtype) ? 1 : 0;
        break;
      case Degree::kFunction:
        degree = most > 0 ? 1 : 0;
        break;
    }
    degrees.push_back(degree);
  }
  return degrees;
}

}  // namespace twinrun
