// Times the ops of some steps through hooks.
#include "harness/run/op_times.h"

#include <chrono>
#include <optional>

#include "backends/core/wrapped.h"

namespace twinrun {
namespace {

using Clock = std::chrono::steady_clock;

// Wraps the hooks of the caller, whose time counts as part of the op.
class OpStopwatch : public OpHooks {
 public:
  OpStopwatch(TimedStep& step, Clock::time_point zero, OpHooks* others)
      : step_(step), zero_(zero), others_(others) {}

  bool watches(const Program& program, ValueId id, int64_t step) override {
    if (others_ == nullptr) return true;
    theirs_.resize(static_cast<size_t>(program.graph.size()), false);
    theirs_[static_cast<size_t>(id)] = others_->watches(program, id, step);
    return true;
  }
  // A core runs one op at a time, on whichever thread, so the last entry is the current op.
  void before(const OpSite& site, std::vector<Tensor>& inputs) override {
    list(site).push_back({site.op().name, now()});
    if (hooked(site)) others_->before(site, inputs);
  }
  bool replace(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override {
    return hooked(site) && others_->replace(site, inputs, output);
  }
  void after(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& output) override {
    if (hooked(site)) others_->after(site, inputs, output);
    list(site).back().end = now();
  }
  void after_copy(const OpSite& site, const std::vector<Tensor>& inputs, Tensor& copy) override {
    if (hooked(site)) others_->after_copy(site, inputs, copy);
  }

 private:
  bool hooked(const OpSite& site) const {
    return others_ != nullptr && theirs_[static_cast<size_t>(site.id)];
  }
  std::vector<TimedOp>& list(const OpSite& site) {
    return site.replica < 0 ? step_.collectives : step_.cores[static_cast<size_t>(site.replica)];
  }
  double now() const { return std::chrono::duration<double>(Clock::now() - zero_).count(); }

  TimedStep& step_;
  Clock::time_point zero_;
  OpHooks* others_;
  std::vector<bool> theirs_;
};

class TimedEngine : public WrappedEngine {
 public:
  TimedEngine(std::unique_ptr<Engine> engine, OpTimes& times, bool ops)
      : WrappedEngine(std::move(engine)), times_(times), ops_(ops) {}

  Status step(int64_t step, States& states, const StepInputs& inputs, StepOutputs& outputs,
              TraceSink* sink, OpHooks* hooks) override {
    const int64_t place = done_++;
    if (place < times_.first || place >= times_.first + times_.count)
      return inner_->step(step, states, inputs, outputs, sink, hooks);
    if (!zero_) zero_ = Clock::now();
    TimedStep timed{.step = step};
    timed.cores.resize(states.size());
    OpStopwatch watch(timed, *zero_, hooks);
    const auto seconds = [&] {
      return std::chrono::duration<double>(Clock::now() - *zero_).count();
    };
    timed.begin = seconds();
    TWINRUN_RETURN_IF_ERROR(
        inner_->step(step, states, inputs, outputs, sink, ops_ ? &watch : hooks));
    timed.end = seconds();
    times_.steps.push_back(std::move(timed));
    return Ok{};
  }

 private:
  OpTimes& times_;
  bool ops_;
  int64_t done_ = 0;
  std::optional<Clock::time_point> zero_;
};

class TimedBackend : public WrappedBackend {
 public:
  TimedBackend(std::unique_ptr<Backend> backend, OpTimes& times, bool ops)
      : WrappedBackend(std::move(backend)), times_(times), ops_(ops) {}
  Result<std::unique_ptr<Engine>> prepare(const Program& program) override {
    return wrap<TimedEngine>(program, times_, ops_);
  }

 private:
  OpTimes& times_;
  bool ops_;
};

}  // namespace

std::unique_ptr<Backend> with_times(std::unique_ptr<Backend> backend, OpTimes& times, bool ops) {
  return std::make_unique<TimedBackend>(std::move(backend), times, ops);
}

}  // namespace twinrun
