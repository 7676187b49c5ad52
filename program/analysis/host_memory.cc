// Bytes of arena, state, outputs, inputs and constants from the fusion and memory plans.
#include "program/analysis/host_memory.h"

#include <algorithm>
#include <set>

#include "program/analysis/memory_plan.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

int64_t lines(int64_t bytes) { return std::max(kLine, (bytes + kLine - 1) / kLine * kLine); }

}  // namespace

HostPlan plan_host(const Program& program) {
  const std::vector<bool> constant = constant_values(program), varies = varying_values(program);
  const FusionPlan fusion = plan_fusion(program, constant);
  const MemoryPlan memory = plan_memory(program, fusion, constant);
  const int64_t cores = program.sharding.cores;
  const auto at = [](ValueId id) { return static_cast<size_t>(id); };
  const auto bytes = [&](ValueId id) {
    return lines(static_cast<int64_t>(program.graph.type(id).bytes())) *
           (varies[at(id)] ? cores : 1);
  };
  // The value that owns the memory: a reshape shares that of its operand.
  const auto root = [&](ValueId id) {
    while (program.graph.op(id).kind == OpKind::kReshape) id = program.graph.op(id).operands[0];
    return id;
  };
  HostPlan plan;
  plan.arena = lines(memory.bytes) * cores;
  std::set<ValueId> counted;
  for (const StateVar& var : program.state) {
    plan.states += bytes(var.id);
    counted.insert(var.id);
    if (var.next == kNoValue || !counted.insert(root(var.next)).second) continue;
    if (memory.takes[at(var.next)] != var.id) plan.states += bytes(var.next);
  }
  for (const Input& input : program.inputs) {
    counted.insert(input.id);
    plan.inputs += lines(static_cast<int64_t>(program.graph.type(input.id).bytes())) *
                   (input.per_core ? cores : 1);
  }
  for (const FusionUnit& unit : fusion.order) {
    if (unit.op == kNoValue || !constant[at(unit.op)]) continue;
    if (counted.insert(root(unit.op)).second) plan.constants += bytes(unit.op);
  }
  for (const Output& output : program.outputs) {
    if (counted.insert(root(output.id)).second) plan.outputs += bytes(output.id);
  }
  return plan;
}

}  // namespace twinrun
