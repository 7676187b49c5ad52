// Describes ops for profiles: category, layer and expression.
#include "harness/profile/describe.h"

#include <fmt/format.h>

#include "harness/lockstep/violation.h"

namespace twinrun {

std::string category_of(OpKind kind) {
  switch (class_of(kind)) {
    case OpClass::kDot:
      return kind == OpKind::kDotGeneral ? "dot" : "convolution";
    case OpClass::kWindow:
      return "pooling";
    case OpClass::kReduce:
      return "reduction";
    case OpClass::kRandom:
      return "random";
    case OpClass::kCollective:
      return "all-reduce";
    case OpClass::kElementwise:
      return "elementwise";
    default:
      return "data formatting";
  }
}

std::string framework_op_of(const std::string& op) {
  const std::string layer = layer_of(op);
  return layer.empty() ? op : layer;
}

std::string expression_of(const Graph& graph, ValueId id) {
  const Op& op = graph.op(id);
  std::string operands;
  for (ValueId operand : op.operands)
    operands += (operands.empty() ? "" : ", ") + to_string(graph.type(operand)) + " " +
                graph.op(operand).name;
  return fmt::format("{} = {} {}({})", op.name, to_string(op.type), name_of(op.kind), operands);
}

}  // namespace twinrun
