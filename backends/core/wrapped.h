// Bases for engines and backends that stand around another one and change part of what it does: a
// fault, another program, a stopwatch, other capabilities. They forward every call; derived classes
// override what they change.
//
//   class CountedEngine : public WrappedEngine { ... int64_t steps_ = 0; };
//   class CountedBackend : public WrappedBackend {
//     Result<std::unique_ptr<Engine>> prepare(const Program& p) override {
//       return wrap<CountedEngine>(p);
//     }
//   };
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "backends/core/backend.h"

namespace twinrun {

class WrappedEngine : public Engine {
 public:
  explicit WrappedEngine(std::unique_ptr<Engine> inner) : inner_(std::move(inner)) {}
  const Program& program() const override { return inner_->program(); }
  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    return inner_->step(step, states, inputs, outputs, sink, hooks);
  }

 protected:
  std::unique_ptr<Engine> inner_;
};

class WrappedBackend : public Backend {
 public:
  // `declare`, where given, changes the capabilities of `inner`.
  explicit WrappedBackend(std::unique_ptr<Backend> inner,
                          std::function<void(Capabilities&)> declare = nullptr)
      : inner_(std::move(inner)), declare_(std::move(declare)) {}
  Capabilities capabilities() const override {
    Capabilities declared = inner_->capabilities();
    if (declare_) declare_(declared);
    return declared;
  }
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return inner_->prepare(program);
  }

 protected:
  // An `E` around the engine that `inner_` prepares; `arguments` follow the engine.
  template <class E, class... Arguments>
  Result<std::unique_ptr<Engine>> wrap(const Program& program, Arguments&&... arguments) {
    TWINRUN_ASSIGN(std::unique_ptr<Engine> engine, inner_->prepare(program));
    return std::unique_ptr<Engine>(
        std::make_unique<E>(std::move(engine), std::forward<Arguments>(arguments)...));
  }

  std::unique_ptr<Backend> inner_;

 private:
  std::function<void(Capabilities&)> declare_;
};

}  // namespace twinrun
