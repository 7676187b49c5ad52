// Subjects for the tests of instrument 1: an honest engine with something of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "backends/backend.h"

namespace twinrun::tiny {

// What is done to the result of an op: run counts the engines that this subject has prepared, from 0.
using Spoil = std::function<bool(const OpSite& site, int64_t run, Tensor& output)>;

class Spoiled : public Backend {
 public:
  Spoiled(std::unique_ptr<Backend> inner, Spoil spoil,
          std::function<void(Capabilities&)> declare = nullptr)
      : inner_(std::move(inner)), spoil_(std::move(spoil)), declare_(std::move(declare)) {}
  Capabilities capabilities() const override {
    Capabilities c = inner_->capabilities();
    if (declare_) declare_(c);
    return c;
  }
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    TWINRUN_ASSIGN(auto engine, inner_->prepare(program));
    return std::unique_ptr<Engine>(new Run(std::move(engine), spoil_, runs_++));
  }

 private:
  class Run : public Engine, public OpHooks {
   public:
    Run(std::unique_ptr<Engine> inner, Spoil spoil, int64_t run)
        : inner_(std::move(inner)), spoil_(std::move(spoil)), run_(run) {}
    const Program& program() const override { return inner_->program(); }
    Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
                TraceSink* sink, OpHooks* hooks) override {
      return inner_->step(step, states, inputs, outputs, sink, spoil_ ? this : hooks);
    }
    bool watches(const Program&, ValueId, int64_t) override { return true; }
    void after(const OpSite& site, const std::vector<Tensor>&, Tensor& output) override {
      Tensor copy = output.clone();
      if (spoil_(site, run_, copy)) output = copy;
    }

   private:
    std::unique_ptr<Engine> inner_;
    Spoil spoil_;
    int64_t run_;
  };
  std::unique_ptr<Backend> inner_;
  Spoil spoil_;
  std::function<void(Capabilities&)> declare_;
  int64_t runs_ = 0;
};

// Doubles an op's first element on core 0 at one step, in the runs that `when` says.
inline Spoil doubles(std::string op, int64_t step, std::function<bool(int64_t)> when) {
  return [=](const OpSite& site, int64_t run, Tensor& output) {
    if (site.op().name != op || site.step != step || site.replica > 0 || !when(run)) return false;
    output.as<float>()[0] *= 2;
    return true;
  };
}

}  // namespace twinrun::tiny
