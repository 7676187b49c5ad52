// Reverse-mode differentiation: visits ops from the loss backwards. The gradient function of each
// op kind (op_def.h) gives the cotangents of its operands.
#include <algorithm>

#include "program/graph/program.h"
#include "program/ops/op_def.h"

namespace twinrun {
namespace {

// The values that depend on `wrt` by ops that have a gradient. Only they get cotangents.
std::vector<bool> reaches(const Graph& graph, const std::vector<ValueId>& wrt) {
  std::vector<bool> needed(static_cast<size_t>(graph.size()), false);
  for (ValueId id : wrt) needed[static_cast<size_t>(id)] = true;
  for (ValueId id = 0; id < graph.size(); ++id) {
    const Op& op = graph.op(id);
    if (op.attrs.stop_gradient || op_def(op.kind).gradient == nullptr) continue;
    for (ValueId operand : op.operands) {
      if (needed[static_cast<size_t>(operand)]) needed[static_cast<size_t>(id)] = true;
    }
  }
  return needed;
}

}  // namespace

std::vector<ValueId> differentiate(Graph& graph, ValueId loss, const std::vector<ValueId>& wrt,
                                   std::vector<ValueId>* all) {
  if (!graph.type(loss).dims.empty()) {
    throw GraphError(graph.op(loss).name + ": the loss is " + to_string(graph.type(loss)) +
                     ", not a scalar");
  }
  const std::vector<bool> needed = reaches(graph, wrt);
  GraphBuilder root(graph, "", Phase::kGradient);
  std::vector<ValueId> cotangent(static_cast<size_t>(graph.size()), kNoValue);
  cotangent[static_cast<size_t>(loss)] = root.derived(graph.op(loss).name, Phase::kGradient)
                                             .constant(1.0, graph.type(loss).dtype, "grad_seed");

  for (ValueId id = loss; id >= 0; --id) {
    const ValueId dy = cotangent[static_cast<size_t>(id)];
    if (dy == kNoValue || !needed[static_cast<size_t>(id)]) continue;
    const Op op = graph.op(id);  // a copy, since emitting ops may reallocate the graph's ops
    const GradientFn gradient = op_def(op.kind).gradient;
    if (gradient == nullptr || op.attrs.stop_gradient || op.operands.empty()) continue;
    std::vector<ValueId> d(op.operands.size(), kNoValue);
    GradientArgs args{root.derived(op.name, Phase::kGradient), op, id, dy, d};
    gradient(args);
    for (size_t i = 0; i < d.size(); ++i) {
      const ValueId operand = op.operands[i];
      if (d[i] == kNoValue || !needed[static_cast<size_t>(operand)]) continue;
      ValueId& slot = cotangent[static_cast<size_t>(operand)];
      slot =
          slot == kNoValue
              ? d[i]
              : root.derived(graph.op(operand).name, Phase::kGradient).add(slot, d[i], "grad_sum");
    }
  }
  std::vector<ValueId> result;
  result.reserve(wrt.size());
  for (ValueId id : wrt) result.push_back(cotangent[static_cast<size_t>(id)]);
  if (all != nullptr) *all = std::move(cotangent);
  return result;
}

}  // namespace twinrun
