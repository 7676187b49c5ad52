// Functions of the engine interface: what an engine's declaration allows, and names of precisions.
#include "backends/core/backend.h"

#include <algorithm>

namespace twinrun {

namespace {

// Whether a value is a product, or holds elements of one that were only moved or selected. `depth`:
// how many ops are followed.
bool holds_product(const Graph& graph, ValueId id, int depth) {
  const Op& op = graph.op(id);
  if (op.kind == OpKind::kMultiply) return true;
  return depth > 0 && class_of(op.kind) == OpClass::kMove &&
         std::ranges::any_of(op.operands, [&](ValueId operand) {
           return graph.type(operand).dtype == DType::kF32 &&
                  holds_product(graph, operand, depth - 1);
         });
}

}  // namespace

unsigned unrounded_operands(const Capabilities& declared, const Graph& graph, ValueId id) {
  const Op& op = graph.op(id);
  if (!declared.contracts || op.type.dtype != DType::kF32) return 0;
  if (op.kind != OpKind::kAdd && op.kind != OpKind::kSubtract) return 0;
  unsigned which = 0;
  for (size_t i = 0; i < 2; ++i) {
    constexpr int kMoves = 8;
    if (holds_product(graph, op.operands[i], kMoves)) which |= 1u << i;
  }
  return which;
}

std::string_view to_string(DotPrecision precision) {
  constexpr std::string_view kNames[] = {"f32", "default", "high", "highest"};
  return kNames[static_cast<size_t>(precision)];
}

}  // namespace twinrun
