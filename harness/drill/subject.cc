// Wraps backends to count runs or withhold ops, and builds the subject of a case.
#include "harness/drill/subject.h"

#include <fmt/format.h>

#include "backends/core/wrapped.h"
#include "backends/faults/other_program.h"
#include "backends/registry.h"
#include "harness/sharding/causes.h"

namespace twinrun::drill {
namespace {

// Counts the runs and their steps.
class CountedEngine : public WrappedEngine {
 public:
  CountedEngine(std::unique_ptr<Engine> engine, std::shared_ptr<Usage> usage)
      : WrappedEngine(std::move(engine)), usage_(std::move(usage)) {}
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    if (!used_) ++usage_->executions;
    used_ = true;
    ++usage_->steps;
    return inner_->step(step, states, inputs, outputs, sink, hooks);
  }

 private:
  std::shared_ptr<Usage> usage_;
  bool used_ = false;
};

class CountedBackend : public WrappedBackend {
 public:
  CountedBackend(std::unique_ptr<Backend> backend, std::shared_ptr<Usage> usage)
      : WrappedBackend(std::move(backend)), usage_(std::move(usage)) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return wrap<CountedEngine>(program, usage_);
  }

 private:
  std::shared_ptr<Usage> usage_;
};

class EngineWithoutTrace : public WrappedEngine {
 public:
  // Reports the requested program, whatever program runs inside.
  EngineWithoutTrace(std::unique_ptr<Engine> engine, Program asked)
      : WrappedEngine(std::move(engine)), asked_(std::move(asked)) {}
  const Program& program() const override { return asked_; }
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* /*sink*/, OpHooks* hooks) override {
    return inner_->step(step, states, inputs, outputs, nullptr, hooks);
  }

 private:
  Program asked_;
};

class BackendWithoutTrace : public WrappedBackend {
 public:
  explicit BackendWithoutTrace(std::unique_ptr<Backend> backend)
      : WrappedBackend(std::move(backend), [](Capabilities& c) { c.op_trace = false; }) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return wrap<EngineWithoutTrace>(program, program);
  }
};

}  // namespace

std::unique_ptr<Backend> counted(std::unique_ptr<Backend> backend, std::shared_ptr<Usage> usage) {
  return std::make_unique<CountedBackend>(std::move(backend), std::move(usage));
}

std::unique_ptr<Backend> without_trace(std::unique_ptr<Backend> backend) {
  return std::make_unique<BackendWithoutTrace>(std::move(backend));
}

Result<std::unique_ptr<Backend>> conforming_engine(const DrillCase& c,
                                                   const BackendOptions& options) {
  return make_backend(fmt::format("honest:{}", c.variant), options);
}

std::unique_ptr<Backend> with_hidden_program(std::unique_ptr<Backend> engine, const DrillCase& c,
                                             const Experiment& experiment) {
  if (c.stratum != Stratum::kHidden) return engine;
  return with_other_program(std::move(engine), [experiment, cause = c.cause](Sharding s) {
    return introduce(experiment, s, cause);
  });
}

Result<std::unique_ptr<Backend>> injected_engine(const DrillCase& c, const Experiment& experiment,
                                                 const BackendOptions& options,
                                                 std::shared_ptr<FaultLog> log) {
  TWINRUN_ASSIGN(std::unique_ptr<Backend> engine, conforming_engine(c, options));
  if (!c.fault.empty()) {
    TWINRUN_ASSIGN(const FaultSpec fault, parse_fault(c.fault));
    engine = with_faults(std::move(engine), {fault}, experiment.scenario.seed, std::move(log));
  }
  return with_hidden_program(std::move(engine), c, experiment);
}

}  // namespace twinrun::drill
