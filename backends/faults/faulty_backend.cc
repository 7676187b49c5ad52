// A backend whose engines run with fault hooks, and the log of what the faults changed.
#include "backends/faults/faulty_backend.h"

#include "backends/core/wrapped.h"

namespace twinrun {
namespace {

class FaultyEngine : public WrappedEngine {
 public:
  FaultyEngine(std::unique_ptr<Engine> conforming, std::unique_ptr<FaultHooks> hooks,
               std::shared_ptr<FaultLog> log)
      : WrappedEngine(std::move(conforming)), hooks_(std::move(hooks)), log_(std::move(log)) {}
  ~FaultyEngine() override {
    const std::lock_guard lock(log_->mutex);
    log_->runs.push_back(hooks_->activations());
  }

  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    if (hooks != nullptr)
      return Error{"an engine with faults does not support other hooks", "faults", ""};
    return inner_->step(step, states, inputs, outputs, sink, hooks_.get());
  }

 private:
  std::unique_ptr<FaultHooks> hooks_;
  std::shared_ptr<FaultLog> log_;
};

class FaultyBackend : public WrappedBackend {
 public:
  FaultyBackend(std::unique_ptr<Backend> conforming, std::vector<FaultSpec> faults, uint64_t seed,
                std::shared_ptr<FaultLog> log)
      : WrappedBackend(std::move(conforming)),
        faults_(std::move(faults)),
        seed_(seed),
        log_(std::move(log)) {}

  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    TWINRUN_ASSIGN(std::unique_ptr<Engine> engine, inner_->prepare(program));
    std::vector<FaultSpec> possible = faults_;
    if (program.sharding.cores == 1) {
      std::erase_if(possible, [&](const FaultSpec& fault) {
        return !FaultHooks::make(program, {fault}, seed_).ok();
      });
    }
    FaultHooks::Where where{.seed = seed_, .declared = inner_->capabilities()};
    {
      const std::lock_guard lock(log_->mutex);
      where.run = log_->prepared++;
    }
    if (possible.empty()) return engine;
    TWINRUN_ASSIGN(auto hooks, FaultHooks::make(program, possible, std::move(where)));
    return std::unique_ptr<Engine>(
        std::make_unique<FaultyEngine>(std::move(engine), std::move(hooks), log_));
  }

 private:
  std::vector<FaultSpec> faults_;
  uint64_t seed_;
  std::shared_ptr<FaultLog> log_;
};

}  // namespace

std::optional<int64_t> FaultLog::first_step() const {
  std::optional<int64_t> first;
  for (const auto& run : runs) {
    for (const Activation& a : run) first = std::min(first.value_or(a.step), a.step);
  }
  return first;
}

std::unique_ptr<Backend> with_faults(std::unique_ptr<Backend> conforming,
                                     std::vector<FaultSpec> faults, uint64_t seed,
                                     std::shared_ptr<FaultLog> log) {
  if (faults.empty()) return conforming;
  if (log == nullptr) log = std::make_shared<FaultLog>();
  return std::make_unique<FaultyBackend>(std::move(conforming), std::move(faults), seed,
                                         std::move(log));
}

}  // namespace twinrun
