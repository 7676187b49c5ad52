// Bytes of arena, state, outputs, inputs and constants from the fusion and memory plans.
#include "program/analysis/host_memory.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "program/analysis/memory_plan.h"
#include "program/graph/liveness.h"

namespace twinrun {
namespace {

int64_t lines(int64_t bytes) { return std::max(kLine, (bytes + kLine - 1) / kLine * kLine); }

// With more cores than run together: values that are the same on all of them and die within the
// step. The engine uses their memory again for values of the same size.
int64_t common_values(const Program& program, const FusionPlan& fusion, const MemoryPlan& memory,
                      const std::vector<bool>& constant, const std::vector<bool>& varies) {
  if (program.sharding.cores <= kCoresTogether) return 0;
  const size_t units = fusion.order.size();
  std::vector<std::vector<int64_t>> dying(units);  // sizes, by the unit after which they are free
  std::map<int64_t, std::pair<int64_t, int64_t>> held;  // by size: how many now, and at most
  std::set<int> mixed;  // sections that also compute what varies, and free nothing before their end
  for (size_t i = 0; i < units; ++i) {
    for (ValueId id : fusion.written(fusion.order[i])) {
      if (varies[static_cast<size_t>(id)]) mixed.insert(memory.section[i]);
    }
  }
  const std::vector<int> last = held_until(program.graph, fusion);
  for (size_t i = 0; i < units; ++i) {
    for (ValueId id : fusion.written(fusion.order[i])) {
      const auto at = static_cast<size_t>(id);
      if (varies[at] || constant[at] || program.graph.op(id).kind == OpKind::kReshape ||
          last[at] >= static_cast<int>(units))
        continue;
      auto end = static_cast<size_t>(last[at]);
      while (mixed.contains(memory.section[end]) && end + 1 < units &&
             memory.section[end + 1] == memory.section[end])
        ++end;
      const int64_t bytes = lines(static_cast<int64_t>(program.graph.type(id).bytes()));
      auto& [now, most] = held[bytes];
      most = std::max(most, ++now);
      dying[end].push_back(bytes);
    }
    for (int64_t bytes : dying[i]) --held[bytes].first;
  }
  int64_t total = 0;
  for (const auto& [bytes, count] : held) total += bytes * count.second;
  return total;
}

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
  plan.arena = lines(memory.bytes) * std::min<int64_t>(cores, kCoresTogether) +
               (memory.carried_bytes > 0 ? lines(memory.carried_bytes) * cores : 0) +
               common_values(program, fusion, memory, constant, varies);
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
