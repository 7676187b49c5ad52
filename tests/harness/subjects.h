// Subjects for the tests of the instruments: conforming engines with one planted deviation, and an
// observer that keeps what a diagnosis keeps of their runs.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/core/wrapped.h"
#include "harness/envelope/envelope.h"
#include "harness/run/run.h"

namespace twinrun::tiny {

// Changes the result of an op and returns true, or returns false and leaves it. `run` counts the
// engines that this subject has prepared, from 0.
using Spoil = std::function<bool(const OpSite& site, int64_t run, Tensor& output)>;

class Spoiled : public WrappedBackend {
 public:
  Spoiled(std::unique_ptr<Backend> inner, Spoil spoil,
          std::function<void(Capabilities&)> declare = nullptr)
      : WrappedBackend(std::move(inner), std::move(declare)), spoil_(std::move(spoil)) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return wrap<Run>(program, spoil_, runs_++);
  }

 private:
  class Run : public WrappedEngine, public OpHooks {
   public:
    Run(std::unique_ptr<Engine> inner, Spoil spoil, int64_t run)
        : WrappedEngine(std::move(inner)), spoil_(std::move(spoil)), run_(run) {}
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
    Spoil spoil_;
    int64_t run_;
  };
  Spoil spoil_;
  int64_t runs_ = 0;
};

// What an engine declares whose ops are not visible.
inline void as_foreign(Capabilities& c) { c.ours = c.op_trace = false; }

// The same for one that declares this precision, or none.
inline std::function<void(Capabilities&)> as_declaring(std::optional<Precision> declares) {
  return [declares](Capabilities& c) {
    as_foreign(c);
    c.declares_arithmetic = declares.has_value();
    c.vocabulary = declares;
    c.precision = declares ? row_of(*declares).dots : DotPrecision::kBf16;
  };
}

// An engine that runs a program of its own, whatever program is requested, and feeds itself from
// its own scenario. Only its tensors are visible.
class OwnScript : public WrappedBackend {
 public:
  OwnScript(Experiment own, Sharding sharding, std::unique_ptr<Backend> inner)
      : WrappedBackend(std::move(inner), as_foreign), own_(std::move(own)), sharding_(sharding) {}
  Result<std::unique_ptr<Engine>> prepare(const Program&) override {
    return wrap<Run>(sharding_.cores > 1 ? own_.sharded(sharding_) : own_.whole(), own_);
  }

 private:
  class Run : public WrappedEngine {
   public:
    Run(std::unique_ptr<Engine> inner, const Experiment& own)
        : WrappedEngine(std::move(inner)), own_(own) {}
    Status step(int64_t step, States& states, const StepInputs&, StepOutputs& outputs,
                TraceSink* sink, OpHooks* hooks) override {
      StepFeed feed(own_, inner_->program());
      TWINRUN_ASSIGN(const StepInputs inputs, feed.inputs(step));
      return inner_->step(step, states, inputs, outputs, sink, hooks);
    }

   private:
    const Experiment& own_;
  };
  Experiment own_;
  Sharding sharding_;
};

// Keeps the states of a run before some of its steps.
class KeptStarts : public StepObserver {
 public:
  explicit KeptStarts(std::vector<int64_t> steps) : steps_(std::move(steps)) {}
  TraceSink* begin_step(int64_t step, const States& before, const StepInputs&) override {
    if (std::ranges::find(steps_, step) != steps_.end()) states.push_back({step, before});
    return nullptr;
  }
  std::vector<ProbedState> states;

 private:
  std::vector<int64_t> steps_;
};

// Keeps all steps of a run: the state before each, the state after it, and the outputs.
class KeptSteps : public StepObserver {
 public:
  TraceSink* begin_step(int64_t step, const States& before, const StepInputs&) override {
    states.push_back({step, before, {}, {}});
    return nullptr;
  }
  void end_step(int64_t, const States& after, const StepOutputs& outputs) override {
    states.back().after = after;
    states.back().outputs = outputs;
  }
  std::vector<ProbedState> states;
};

// Doubles the first element of an op's result on core 0 at one step, in the runs for which `when`
// returns true.
inline Spoil doubles(std::string op, int64_t step, std::function<bool(int64_t)> when) {
  return [=](const OpSite& site, int64_t run, Tensor& output) {
    if (site.op().name != op || site.step != step || site.replica > 0 || !when(run)) return false;
    output.as<float>()[0] *= 2;
    return true;
  };
}

}  // namespace twinrun::tiny
