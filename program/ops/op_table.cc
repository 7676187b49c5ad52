// The table of op kinds from ops.def: names, operand counts, classes, definitions, FLOPs.
#include <array>

#include "program/ops/op_def.h"

namespace twinrun {
namespace {

struct Row {
  std::string_view name;
  int operands;
  OpClass cls;
  ShownAttributes shown;
  Degree degree;
};
constexpr std::array<Row, kOpKinds> kRows = {{
#define X(Enumerator, name, operands, cls, shown, degree) \
  {name, operands, OpClass::k##cls, ShownAttributes::k##shown, Degree::k##degree},
#include "program/ops.def"
#undef X
}};

OpDef make_def(OpKind kind) {
  switch (class_of(kind)) {
    case OpClass::kSource:
      return source_def(kind);
    case OpClass::kMove:
      return movement_def(kind);
    case OpClass::kElementwise:
      return elementwise_def(kind);
    case OpClass::kDot:
      return dot_def(kind);
    case OpClass::kReduce:
      return reduce_def(kind);
    case OpClass::kWindow:
      return window_def(kind);
    case OpClass::kRandom:
      return random_def(kind);
    case OpClass::kCollective:
      return collective_def(kind);
  }
  return {};
}

}  // namespace

std::string_view name_of(OpKind kind) { return kRows[static_cast<size_t>(kind)].name; }
int operand_count(OpKind kind) { return kRows[static_cast<size_t>(kind)].operands; }
OpClass class_of(OpKind kind) { return kRows[static_cast<size_t>(kind)].cls; }

bool is_elementary(OpKind kind) {
  switch (kind) {
    case OpKind::kExponential:
    case OpKind::kLog:
    case OpKind::kTanh:
    case OpKind::kLogistic:
    case OpKind::kErf:
    case OpKind::kLog1p:
    case OpKind::kSine:
    case OpKind::kCosine:
      return true;
    default:
      return false;
  }
}
ShownAttributes shown_attributes_of(OpKind kind) { return kRows[static_cast<size_t>(kind)].shown; }
Degree degree_of(OpKind kind) { return kRows[static_cast<size_t>(kind)].degree; }

std::string_view to_string(Phase phase) {
  switch (phase) {
    case Phase::kForward:
      return "forward";
    case Phase::kGradient:
      return "gradient";
    case Phase::kCollective:
      return "collective";
    case Phase::kUpdate:
      return "update";
  }
  return "?";
}

const OpDef& op_def(OpKind kind) {
  static const std::array<OpDef, kOpKinds> table = [] {
    std::array<OpDef, kOpKinds> t;
    for (int i = 0; i < kOpKinds; ++i) t[static_cast<size_t>(i)] = make_def(static_cast<OpKind>(i));
    return t;
  }();
  return table[static_cast<size_t>(kind)];
}

double flops(const Graph& graph, ValueId id) {
  const Op& op = graph.op(id);
  if (const FlopsFn own = op_def(op.kind).flops; own != nullptr) return own(graph, op);
  const OpClass cls = class_of(op.kind);
  return cls == OpClass::kSource || cls == OpClass::kMove ? 0
                                                          : static_cast<double>(op.type.elements());
}

}  // namespace twinrun
