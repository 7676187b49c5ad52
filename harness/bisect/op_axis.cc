// Axis `op`: finds the first op, core and element that differ between two engines within one step.
#include <fmt/format.h>

#include <algorithm>

#include "backends/exec/messages.h"
#include "harness/bisect/divergence.h"
#include "harness/experiment/experiment.h"
#include "harness/lockstep/op_digests.h"

namespace twinrun::bisect {
namespace {

// The values of one op.
struct Held {
  std::vector<std::vector<Tensor>> inputs;
  std::vector<Tensor> outputs;
  std::string name, kind, phase;
  void hold(const OpEvent& event) {
    inputs.assign(event.inputs.begin(), event.inputs.end());
    outputs.assign(event.outputs.begin(), event.outputs.end());
    name = event.op().name;
    kind = name_of(event.op().kind);
    phase = to_string(event.op().phase);
  }
};

// Keeps the values of the first op that wrote other bits than the other engine's.
class CompareSink : public TraceSink {
 public:
  explicit CompareSink(const OpDigests& other) : other_(other) {}
  void on_op(const OpEvent& event) override {
    if (!key.empty()) return;
    const std::string name = names_.next(event.op().name);
    const std::vector<Digest>* const theirs = other_.find(name);
    if (theirs == nullptr) {
      only_here.push_back(name);
      return;
    }
    for (size_t r = 0; r < event.outputs.size(); ++r) {
      const bool shared =
          r > 0 && event.outputs[r].raw() == event.outputs[0].raw() && (*theirs)[r] == (*theirs)[0];
      if (shared || digest(event.outputs[r]) == (*theirs)[r]) continue;
      key = name;
      held.hold(event);
      return;
    }
    ++same;
  }
  std::string key;  // of the op; "": none
  Held held;
  int64_t same = 0;
  std::vector<std::string> only_here;

 private:
  const OpDigests& other_;
  OpNames names_;
};

class HoldSink : public TraceSink {
 public:
  explicit HoldSink(std::string key) : key_(std::move(key)) {}
  void on_op(const OpEvent& event) override {
    if (names_.next(event.op().name) == key_) held.hold(event);
  }
  Held held;

 private:
  std::string key_;
  OpNames names_;
};

struct Stepped {
  States after;
  StepOutputs outputs;
};

// Runs the kept step on a new engine.
Result<Stepped> step_of(Backend& backend, const Program& program, const KeptStep& kept,
                        TraceSink* sink, int64_t& executions) {
  TWINRUN_ASSIGN(const std::unique_ptr<Engine> engine, engine_before(backend, program, kept));
  Stepped s;
  s.after = kept.before;
  TWINRUN_RETURN_IF_ERROR(engine->step(kept.step, s.after, kept.inputs, s.outputs, sink));
  ++executions;
  return s;
}

bool same_inputs(const Held& a, const Held& b) {
  if (a.inputs.size() != b.inputs.size()) return false;
  for (size_t r = 0; r < a.inputs.size(); ++r) {
    if (a.inputs[r].size() != b.inputs[r].size()) return false;
    for (size_t i = 0; i < a.inputs[r].size(); ++i) {
      if (!a.inputs[r][i].same_bits(b.inputs[r][i])) return false;
    }
  }
  return true;
}

// Outputs in the order in which the program computes them, then state variables. `all`: both engines
// give all outputs; an engine of another process gives only those that it is asked for.
std::vector<TensorGap> tensor_gaps(const Program& program, bool all, const Stepped& a,
                                   const Stepped& b) {
  std::vector<std::pair<ValueId, size_t>> order;
  for (size_t o = 0; o < program.outputs.size(); ++o)
    if (all || exec::is_asked_for(program.outputs[o])) order.emplace_back(program.outputs[o].id, o);
  std::ranges::sort(order);
  std::vector<TensorGap> gaps;
  const auto compare = [&](const std::string& name, auto tensor) {
    std::vector<Tensor> x, y;
    for (size_t r = 0; r < a.after.size(); ++r) {
      x.push_back(tensor(a, r));
      y.push_back(tensor(b, r));
    }
    if (auto gap = gap_of(name, x, y)) gaps.push_back(std::move(*gap));
  };
  for (const auto& [id, o] : order) {
    compare(program.outputs[o].name,
            [o = o](const Stepped& s, size_t r) { return s.outputs[r][o]; });
  }
  for (size_t i = 0; i < program.state.size(); ++i) {
    compare(program.state[i].name, [i](const Stepped& s, size_t r) { return s.after[r].vars[i]; });
  }
  return gaps;
}

}  // namespace

Result<OpDivergence> op_of_step(const Twins& t, const KeptStep& kept) {
  OpDivergence p;
  p.step = kept.step;
  const bool traced = t.a.capabilities().op_trace && t.b.capabilities().op_trace;
  OpDigests ops_a;
  CompareSink ops_b(ops_a);
  TWINRUN_ASSIGN(const Stepped a,
                 step_of(t.a, t.program_a, kept, traced ? &ops_a : nullptr, p.executions));
  TWINRUN_ASSIGN(const Stepped b,
                 step_of(t.b, t.program_b, kept, traced ? &ops_b : nullptr, p.executions));
  p.tensors = tensor_gaps(t.program_a, traced, a, b);
  p.ops = ops_b.same;
  if (!ops_b.only_here.empty()) {
    p.notes.push_back(fmt::format("{} of B's ops before it have no counterpart in A, first {}",
                                  ops_b.only_here.size(), ops_b.only_here.front()));
  }
  if (!ops_b.key.empty()) {
    HoldSink again_a(ops_b.key), again_b(ops_b.key);
    TWINRUN_RETURN_IF_ERROR(step_of(t.a, t.program_a, kept, &again_a, p.executions));
    TWINRUN_RETURN_IF_ERROR(step_of(t.b, t.program_b, kept, &again_b, p.executions));
    const std::vector<Digest>& first_a = *ops_a.find(ops_b.key);
    for (size_t r = 0; r < first_a.size(); ++r) {
      if (digest(again_a.held.outputs[r]) != first_a[r]) p.repeats_a = false;
      if (!again_b.held.outputs[r].same_bits(ops_b.held.outputs[r])) p.repeats_b = false;
    }
    p.by = OpDivergence::By::kOp;
    p.op = ops_b.held.name, p.kind = ops_b.held.kind, p.phase = ops_b.held.phase;
    p.inputs_agree = same_inputs(again_a.held, ops_b.held);
    if (auto gap = gap_of(p.op, again_a.held.outputs, ops_b.held.outputs)) p.gap = std::move(*gap);
    return p;
  }
  if (p.tensors.empty()) return p;
  p.by = OpDivergence::By::kTensor;
  p.gap = p.tensors.front();
  p.notes.emplace_back(
      traced ? "no op that both engines show differs: the difference arises outside of their ops"
             : "one of the engines shows no ops: only the state and the outputs after a step can "
               "be compared");
  int64_t& n = p.executions;
  TWINRUN_ASSIGN(const Stepped again_a, step_of(t.a, t.program_a, kept, nullptr, n));
  TWINRUN_ASSIGN(const Stepped again_b, step_of(t.b, t.program_b, kept, nullptr, n));
  p.repeats_a = tensor_gaps(t.program_a, traced, a, again_a).empty();
  p.repeats_b = tensor_gaps(t.program_b, traced, b, again_b).empty();
  return p;
}

}  // namespace twinrun::bisect
