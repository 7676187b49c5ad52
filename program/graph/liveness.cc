// Last uses, dead values, constants, values that differ between replicas, and FLOPs of a step.
#include "program/graph/liveness.h"

#include "program/ops/op_def.h"

namespace twinrun {

std::vector<ValueId> last_uses(const Program& program) {
  const std::vector<bool> dead = dead_values(program);
  std::vector<ValueId> last(static_cast<size_t>(program.graph.size()));
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    last[static_cast<size_t>(id)] = id;
    if (dead[static_cast<size_t>(id)]) continue;
    for (ValueId operand : program.graph.op(id).operands) last[static_cast<size_t>(operand)] = id;
  }
  for (const auto& var : program.state) {
    if (var.next != kNoValue) last[static_cast<size_t>(var.next)] = program.graph.size();
  }
  for (const auto& output : program.outputs)
    last[static_cast<size_t>(output.id)] = program.graph.size();
  return last;
}

std::vector<bool> dead_values(const Program& program) {
  std::vector<bool> dead(static_cast<size_t>(program.graph.size()), true);
  for (const auto& var : program.state) {
    if (var.next != kNoValue) dead[static_cast<size_t>(var.next)] = false;
  }
  for (const auto& output : program.outputs) dead[static_cast<size_t>(output.id)] = false;
  for (ValueId id = program.graph.size() - 1; id >= 0; --id) {
    if (dead[static_cast<size_t>(id)]) continue;
    for (ValueId operand : program.graph.op(id).operands)
      dead[static_cast<size_t>(operand)] = false;
  }
  return dead;
}

std::vector<bool> constant_values(const Program& program) {
  std::vector<bool> constant(static_cast<size_t>(program.graph.size()), false);
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    const Op& op = program.graph.op(id);
    if (op.kind == OpKind::kParameter || op.kind == OpKind::kRngUniform ||
        op.kind == OpKind::kAllReduce)
      continue;
    bool all = true;
    for (ValueId operand : op.operands) all = all && constant[static_cast<size_t>(operand)];
    constant[static_cast<size_t>(id)] = all;
  }
  return constant;
}

std::vector<bool> varying_values(const Program& program) {
  std::vector<bool> varies(static_cast<size_t>(program.graph.size()), false);
  const auto at = [](ValueId id) { return static_cast<size_t>(id); };
  if (program.sharding.cores == 1) return varies;
  for (const auto& input : program.inputs) varies[at(input.id)] = input.per_core;
  for (bool again = true; again;) {
    again = false;
    for (ValueId id = 0; id < program.graph.size(); ++id) {
      const Op& op = program.graph.op(id);
      if (op.kind == OpKind::kAllReduce) continue;
      for (ValueId operand : op.operands) {
        if (varies[at(operand)]) varies[at(id)] = true;
      }
    }
    for (const auto& var : program.state) {
      if (var.next == kNoValue || !varies[at(var.next)] || varies[at(var.id)]) continue;
      varies[at(var.id)] = again = true;
    }
  }
  return varies;
}

double step_flops(const Program& program) {
  const std::vector<bool> dead = dead_values(program);
  double total = 0;
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    if (!dead[static_cast<size_t>(id)]) total += flops(program.graph, id);
  }
  return total;
}

}  // namespace twinrun
