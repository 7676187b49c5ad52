// Gradient accumulation: sums of gradients as slots, a step counter, and updates that apply at
// every k-th step.
#include "program/graph/accumulate.h"

#include "program/graph/optimizer_rules.h"

namespace twinrun {
namespace {

// apply ? a : b, for any shape.
ValueId choose(GraphBuilder& b, ValueId apply, ValueId yes, ValueId no, const std::string& local) {
  return b.select(b.broadcast_scalar(apply, yes, local + "_applies"), yes, no, local);
}

}  // namespace

Accumulation begin_accumulation(Program& program, const std::vector<int>& parameters,
                                std::vector<ValueId>& grads) {
  Accumulation result;
  const auto k = static_cast<double>(program.optimizer.accumulate);
  if (program.optimizer.accumulate <= 1) return result;
  const Update u{program, program.optimizer, kNoValue};

  const int counter = u.counter("accumulate/step", 0);
  GraphBuilder b(program.graph, "accumulate", Phase::kUpdate);
  // Exact, since k is below 2^24.
  const ValueId done = b.binary_scalar(OpKind::kAdd, u.var(counter).id, 1, "steps");
  const ValueId all = b.constant(k, DType::kF32, "all");
  result.apply = b.compare(CompareKind::kGe, done, all, "apply");
  const ValueId zero = b.constant(0, DType::kF32, "zero");
  u.set(counter, b.select(result.apply, zero, done, "step.update"));

  for (size_t i = 0; i < parameters.size(); ++i) {
    if (grads[i] == kNoValue) continue;
    const int slot = u.slot(parameters[i], "gradient_sum");
    GraphBuilder at = u.at(parameters[i]);
    const ValueId sum = at.add(u.var(slot).id, grads[i], "gradient_total");
    const ValueId zeros = at.broadcast_scalar(zero, sum, "gradient_zeros");
    u.set(slot, choose(at, result.apply, zeros, sum, "gradient_sum.update"));
    grads[i] = program.optimizer.accumulate_mean
                   ? at.binary_scalar(OpKind::kDivide, sum, k, "gradient_mean")
                   : sum;
  }
  for (const StateVar& var : program.state) result.before.push_back(var.next);
  return result;
}

void end_accumulation(Program& program, const Accumulation& accumulation) {
  if (accumulation.apply == kNoValue) return;
  for (size_t i = 0; i < program.state.size(); ++i) {
    StateVar& var = program.state[i];
    const ValueId before = i < accumulation.before.size() ? accumulation.before[i] : kNoValue;
    if (var.next == before) continue;
    GraphBuilder b = GraphBuilder(program.graph).derived(var.name, Phase::kUpdate);
    var.next = choose(b, accumulation.apply, var.next, var.id, "applied");
  }
}

}  // namespace twinrun
