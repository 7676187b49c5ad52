// Runs a program op by op on N replicas: the engine that cpu and tpu share. They differ in arithmetic and in what they declare.
// Op-major: all replicas finish an op before the next begins, so a collective needs no rendezvous and results cannot depend on
// the number of host threads. A value that is the same object on all replicas (an all-reduced gradient, a weight) is computed
// once and shared.
//
//   Interpreter engine(program, capabilities, arithmetic, options);
//   engine.step(0, states, inputs, outputs);
#pragma once

#include <vector>

#include "backends/backend.h"
#include "backends/kernels/kernels.h"

namespace twinrun {

class Interpreter : public Engine {
 public:
  Interpreter(Program program, Arithmetic arithmetic, const BackendOptions& options);
  const Program& program() const override { return program_; }
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs, TraceSink* sink,
              OpHooks* hooks) override;

 private:
  using Values = std::vector<std::vector<Tensor>>;  // [replica][value]
  struct OpRun;

  Status bind(const States& states, const StepInputs& inputs);
  void run_op(OpRun& run);
  void run_replica(OpRun& run, int replica);
  void run_collective(OpRun& run);
  Tensor fresh(const TensorType& type) const;
  void release(ValueId at);

  Program program_;
  Arithmetic arithmetic_;
  bool poison_memory_;
  ThreadPool pool_;
  std::vector<ValueId> last_use_;
  std::vector<std::vector<ValueId>> dies_;  // values whose last reader is op i
  std::vector<bool> constant_;              // depends on no input, state or random op
  std::vector<Tensor> constants_;           // computed once
  Values values_;
};

}  // namespace twinrun
