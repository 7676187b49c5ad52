// Functions of the engine interface: what an engine's declaration allows, and names of precisions.
#include "backends/core/backend.h"

namespace twinrun {

unsigned unrounded_operands(const Capabilities& declared, const Graph& graph, ValueId id) {
  const Op& op = graph.op(id);
  if (!declared.contracts || op.type.dtype != DType::kF32) return 0;
  if (op.kind != OpKind::kAdd && op.kind != OpKind::kSubtract) return 0;
  unsigned which = 0;
  for (size_t i = 0; i < 2; ++i) {
    if (graph.op(op.operands[i]).kind == OpKind::kMultiply) which |= 1u << i;
  }
  return which;
}

std::string_view to_string(DotPrecision precision) {
  constexpr std::string_view kNames[] = {"f32", "default", "high", "highest"};
  return kNames[static_cast<size_t>(precision)];
}

}  // namespace twinrun
