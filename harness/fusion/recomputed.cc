// Replays an op from values farther and farther upstream.
#include "harness/fusion/recomputed.h"

#include <set>

#include "harness/fusion/compiled_step.h"

namespace twinrun {
namespace {

class ValueKeeper : public TraceSink {
 public:
  explicit ValueKeeper(std::vector<std::vector<Tensor>>& values) : values_(values) {}
  void on_op(const OpEvent& event) override {
    for (size_t r = 0; r < values_.size(); ++r)
      values_[r][static_cast<size_t>(event.id)] = event.outputs[r];
  }

 private:
  std::vector<std::vector<Tensor>>& values_;
};

bool may_be_computed_again(const Op& op) {
  const OpClass c = class_of(op.kind);
  return op.kind != OpKind::kParameter && c != OpClass::kRandom && c != OpClass::kCollective;
}

}  // namespace

Result<TracedStep> TracedStep::of(Engine& engine, const KeptStep& kept) {
  TracedStep out;
  out.kept_ = kept;
  out.values_.assign(kept.before.size(),
                     std::vector<Tensor>(static_cast<size_t>(engine.program().graph.size())));
  ValueKeeper keeper(out.values_);
  States after = kept.before;
  StepOutputs outputs;
  TWINRUN_RETURN_IF_ERROR(engine.step(kept.step, after, kept.inputs, outputs, &keeper));
  return out;
}

Result<bool> TracedStep::explains(const Program& program, const Capabilities& declared, ValueId id,
                                  size_t replica, ThreadPool* pool) const {
  const Graph& graph = program.graph;
  const auto& values = values_[replica];
  const Tensor& found = values[static_cast<size_t>(id)];
  if (!found.valid() || !may_be_computed_again(graph.op(id))) return false;
  Program alone = program;  // one replica's part: what others contribute is given
  alone.sharding.cores = 1;
  std::set<ValueId> again = {id}, edge = again;
  // Fusions grow by ops, not by rings; a few rings tell most, and all of them decide.
  for (int ring = 0; !edge.empty(); ++ring) {
    const bool last = ring >= 16;
    for (bool grown = true; grown;) {
      std::set<ValueId> next;
      for (const ValueId at : edge) {
        for (const ValueId operand : graph.op(at).operands) {
          if (may_be_computed_again(graph.op(operand)) && again.insert(operand).second)
            next.insert(operand);
        }
      }
      grown = last && !next.empty();
      edge = std::move(next);
    }
    ReplayArguments given{kept_.before[replica].vars, kept_.inputs[replica], {}, {}};
    for (const ValueId at : again) {
      for (const ValueId operand : graph.op(at).operands) {
        if (!again.contains(operand) && graph.op(operand).kind != OpKind::kParameter &&
            values[static_cast<size_t>(operand)].valid())
          given.values[operand] = values[static_cast<size_t>(operand)];
      }
    }
    TWINRUN_ASSIGN(const auto legal,
                   replay_values(alone, given, {id}, fused_arithmetic(declared), pool));
    const FoundVerdict verdict = compare(legal.front(), found);
    if (verdict.outside == 0) return verdict.unknown == 0;
    if (last) break;
  }
  return false;
}

}  // namespace twinrun
