// The random ops of a program, and a program of them alone.
#include "program/graph/random_ops.h"

namespace twinrun {

std::vector<ValueId> random_ops(const Program& program) {
  std::vector<ValueId> ids;
  for (ValueId id = 0; id < program.graph.size(); ++id) {
    if (class_of(program.graph.op(id).kind) == OpClass::kRandom) ids.push_back(id);
  }
  return ids;
}

Program only_random(const Program& program) {
  Program p = program;
  p.outputs.clear();
  for (StateVar& var : p.state) var.next = kNoValue;
  for (const ValueId id : random_ops(program)) p.outputs.push_back({program.graph.op(id).name, id});
  return prune(p);
}

}  // namespace twinrun
