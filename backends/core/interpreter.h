// Runs a program on N replicas: the engine that cpu and tpu share. They differ in arithmetic and in what they declare.
// Unit by unit (an op, or a group of elementwise ops in one pass over memory: program/analysis/fusion.h); all replicas finish a
// unit before the next begins, so a collective needs no rendezvous and results cannot depend on the number of host threads. A
// value that is the same object on all replicas (an all-reduced gradient, a weight) is computed once and shared. What dies
// within the step lies in an arena, planned once (program/analysis/memory_plan.h); a state that nobody else holds is
// updated in place. A step that somebody watches runs op by op, in program order, every value in memory of its own; its
// bits are the same.
//
//   Interpreter engine(program, arithmetic, options);
//   engine.step(0, states, inputs, outputs, nullptr, nullptr);
#pragma once

#include <unordered_map>
#include <vector>

#include "backends/core/backend.h"
#include "backends/kernels/fused.h"
#include "backends/kernels/kernels.h"
#include "program/analysis/fusion.h"
#include "program/analysis/memory_plan.h"

namespace twinrun {

// Memory of results that leave the step and come back, and of watched steps: fresh pages cost more than the ops that fill
// them.
class TensorPool {
 public:
  Tensor take(const TensorType& type);
  void give(Tensor&& tensor);  // kept if nobody else holds it
  void end_step();             // drops what a whole step has not used

 private:
  struct Idle {
    Tensor tensor;
    int64_t since;
  };
  std::unordered_map<int64_t, std::vector<Idle>> idle_;  // by element count and dtype
  int64_t steps_ = 0;
};

class Interpreter : public Engine {
 public:
  Interpreter(Program program, Arithmetic arithmetic, const BackendOptions& options);
  const Program& program() const override { return program_; }
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override;

 private:
  using Values = std::vector<std::vector<Tensor>>;  // [replica][value]
  struct OpRun;

  Status check(const States& states, const StepInputs& inputs) const;
  void bind(States& states, const StepInputs& inputs);
  bool find_watched(int64_t step, OpHooks* hooks);
  void step_by_ops(int64_t step, TraceSink* sink, OpHooks* hooks);
  void step_by_units();
  void collect(States& states, StepOutputs& outputs);
  void run_op(OpRun& run);
  void run_group(size_t index);
  void run_replica(OpRun& run, int replica);
  void run_collective(OpRun& run);
  void store(OpRun& run);
  Tensor fresh(const TensorType& type);
  Tensor place(size_t replica, ValueId id);
  bool held_by_us(ValueId id, bool uniform) const;
  void release(const std::vector<ValueId>& dead);

  Program program_;
  Arithmetic arithmetic_;
  bool poison_memory_;
  ThreadPool pool_;
  TensorPool memory_;
  std::vector<bool> dead_;         // nobody needs it: not computed, not traced
  std::vector<bool> constant_;     // depends on no input, state or random op
  std::vector<Tensor> constants_;  // computed once
  std::vector<bool> small_;        // not worth waking threads for, on all replicas together
  std::vector<std::vector<ValueId>> dies_;  // values whose last reader is op i
  FusionPlan plan_;
  std::vector<FusedKernel> kernels_;  // of plan_.groups
  MemoryPlan memory_plan_;
  bool in_arena_ = false;       // this step's values lie where they were planned
  std::vector<Tensor> arenas_;  // one per replica, made by the first step that needs them
  std::vector<std::vector<ValueId>>
      unit_dies_;              // values outside the arena whose last reader is unit i
  std::vector<bool> watched_;  // by hooks, in this step
  Values values_;
  std::vector<const std::byte*> sources_;  // of the group at work
  std::vector<std::byte*> stored_;
};

}  // namespace twinrun
