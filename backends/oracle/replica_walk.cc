// Evaluates a program op by op on all replicas; replicas with the same operands share the result.
#include "backends/oracle/replica_walk.h"

#include "program/graph/liveness.h"

namespace twinrun {

ReplicaWalk::ReplicaWalk(const Program& program)
    : program_(program), last_use_(last_uses(program)), dead_(dead_values(program)) {}

Status ReplicaWalk::run(Values& values, const Eval& eval, const Seen& seen) const {
  for (ValueId id = 0; id < program_.graph.size(); ++id) {
    const Op& op = program_.graph.op(id);
    if (op.kind == OpKind::kParameter || dead_[static_cast<size_t>(id)]) continue;
    Values inputs(values.size());
    std::vector<Tensor> outputs(values.size()), contributions;
    for (size_t r = 0; r < values.size(); ++r) {
      for (ValueId operand : op.operands)
        inputs[r].push_back(values[r][static_cast<size_t>(operand)]);
      if (op.kind == OpKind::kAllReduce) contributions.push_back(inputs[r][0]);
    }
    for (size_t r = 0; r < values.size(); ++r) {
      bool same = r > 0;
      for (size_t i = 0; same && i < inputs[r].size(); ++i)
        same = inputs[r][i].raw() == inputs[0][i].raw();
      if (r > 0 && (same || op.kind == OpKind::kAllReduce)) {
        outputs[r] = outputs[0];
      } else {
        TWINRUN_ASSIGN(outputs[r], eval(op, contributions.empty() ? inputs[r] : contributions));
      }
    }
    seen(id, inputs, outputs);
    for (size_t r = 0; r < values.size(); ++r) {
      values[r][static_cast<size_t>(id)] = outputs[r];
      for (ValueId operand : op.operands) {
        if (last_use_[static_cast<size_t>(operand)] == id)
          values[r][static_cast<size_t>(operand)] = Tensor();
      }
    }
  }
  return Ok{};
}

}  // namespace twinrun
