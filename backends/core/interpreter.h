// The interpreter: runs a program on N replicas. It is the engine that cpu and tpu share; they
// differ in arithmetic and in what they declare.
//
// It executes unit by unit (an op, or a group of elementwise ops in one pass over memory:
// program/analysis/fusion.h). All replicas finish a unit before the next begins, so a collective
// needs no rendezvous and results cannot depend on the number of host threads. With many replicas a
// block of them runs up to the next collective, then the next block, so that the values of one
// block at a time are held. Replicas that read the same objects (an all-reduced gradient, a weight)
// share the result, which is computed once, and next states with the same bits become one object:
// a replica has memory of its own for what differs.
// Values that die within the step lie in an arena that is planned once
// (program/analysis/memory_plan.h); a state variable that has no other owner is updated in place. A
// step with a trace sink or a watching hook runs op by op, in program order and without the arena;
// its bits are the same. A sink that accepts groups sees the units instead, also without the arena.
//
// With ranks (BackendOptions::ranks), the replicas of a block are computed here and the others
// elsewhere. Their values are known here only where a collective, the end of a step or a trace
// needs them; a step with a sink runs op by op and knows all values of all replicas.
//
//   Interpreter engine(program, arithmetic, options);
//   engine.step(0, states, inputs, outputs, nullptr, nullptr);
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "backends/core/backend.h"
#include "backends/core/split_cores.h"
#include "backends/kernels/fused.h"
#include "backends/kernels/kernels.h"
#include "program/analysis/fusion.h"
#include "program/analysis/memory_plan.h"

namespace twinrun {

// Recycles the memory of tensors outside the arena: results that leave the step and come back, and
// all values of traced or hooked steps. Fresh pages cost more than the ops that fill them.
class TensorPool {
 public:
  Tensor take(const TensorType& type);
  void give(Tensor&& tensor);  // kept if it has no other owner
  void end_step();             // frees what two whole steps have not used

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
  struct OpRun {
    int64_t step = 0;
    ValueId id = kNoValue;
    OpHooks* hooks = nullptr;  // nullptr unless they watch this op
    std::vector<std::vector<Tensor>> inputs = {};
    std::vector<Tensor> outputs = {};
    bool whole = true;  // the outputs of all known replicas are there, without other ranks
  };

  Status check(const States& states, const StepInputs& inputs) const;
  void bind(States& states, const StepInputs& inputs);
  bool find_watched(int64_t step, OpHooks* hooks);
  void step_by_ops(int64_t step, TraceSink* sink, OpHooks* hooks);
  GroupSink* group_sink(TraceSink* sink);
  void step_by_units(int64_t step, GroupSink* sink);
  void run_unit(OpRun& run, size_t index, GroupSink* sink);
  void begin_arenas();
  void run_section(OpRun& run, size_t first, size_t last);
  std::vector<bool> find_common(size_t first, size_t last) const;
  void collect(States& states, StepOutputs& outputs);
  void run_op(OpRun& run);
  void run_group(int64_t step, size_t index, GroupSink* sink);
  void run_replica(OpRun& run, int replica);
  void run_collective(OpRun& run);
  void complete(OpRun& run);
  void complete_results();
  void store(OpRun& run);
  Tensor fresh(const TensorType& type);
  Tensor place(size_t replica, ValueId id);
  CoreBlock known() const;
  void find_jobs(std::span<const ValueId> operands, bool apart);
  void share_results(const std::function<Tensor&(size_t replica)>& result);
  void gather_jobs(std::span<const TensorType> types,
                   const std::function<Tensor&(size_t replica, size_t i)>& result);
  bool held_by_us(ValueId id, size_t replica) const;
  void release(const std::vector<ValueId>& dead);

  Program program_;
  Arithmetic arithmetic_;
  bool poison_memory_;
  std::unique_ptr<ThreadPool> own_pool_;
  ThreadPool& pool_;
  TensorPool memory_;
  std::vector<bool> dead_;         // no output or next state needs it: not computed, not traced
  std::vector<bool> constant_;     // depends on no input, state or random op
  std::vector<Tensor> constants_;  // computed once
  std::vector<bool> small_;        // too little work, on all replicas together, to wake threads for
  std::vector<std::vector<ValueId>> dies_;  // dies_[i]: values whose last reader is op i
  FusionPlan plan_;
  std::vector<FusedKernel> kernels_;  // of plan_.groups
  MemoryPlan memory_plan_;
  bool in_arena_ = false;     // this step's values lie at their planned offsets
  bool in_place_ = false;     // and a next state over the old one
  std::vector<bool> varies_;  // values that differ between replicas, as the program says
  size_t block_size_;         // how many replicas run side by side
  // Made by the first step that needs them: one per replica of a block, and one per replica for
  // what is carried from section to section.
  std::vector<Tensor> arenas_, carried_;
  // unit_dies_[i]: values outside the arena whose last reader is unit i.
  std::vector<std::vector<ValueId>> unit_dies_;
  // For sinks that accept groups: the values whose last reader is unit i.
  std::vector<std::vector<ValueId>> shown_dies_;
  std::vector<bool> watched_;        // ops that the hooks watch in this step
  std::optional<SplitCores> split_;  // set if other ranks compute some of the replicas
  CoreBlock mine_;                   // the replicas that are computed here
  CoreBlock block_;                  // those of mine_ whose turn it is
  // Of the unit that is running: for each job, the first of its replicas in the block, which computes
  // it, or kElsewhere, and how many replicas it has; for each replica the number of its job; and
  // the replicas that compute.
  static constexpr size_t kElsewhere = SIZE_MAX;
  std::vector<size_t> jobs_, job_sizes_, job_of_, computed_;
  // With other ranks: the values that are one object on all replicas, as a job's are here.
  std::vector<bool> shared_;
  bool whole_ = true;  // this step knows the values of all replicas, not only of those in mine_
  Values values_;
  std::vector<const std::byte*> sources_;  // operands of the group that is running
  std::vector<std::byte*> stored_;         // and its results
};

}  // namespace twinrun
