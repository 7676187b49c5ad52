// Times the ops of some steps through hooks, and turns the times into a Chrome trace.
#include "harness/run/op_times.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <span>

#include "backends/core/wrapped.h"

namespace twinrun {
namespace {

using Clock = std::chrono::steady_clock;

TimedOp described(const OpSite& site) {
  const Op& op = site.op();
  return {op.name, std::string(name_of(op.kind)), std::string(to_string(op.phase)),
          to_string(op.type)};
}

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
    list(site).push_back(described(site));
    list(site).back().begin = now();
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
    if (!zero_) {
      zero_ = Clock::now();
      times_.zero = std::chrono::duration<double>(zero_->time_since_epoch()).count();
    }
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

TraceSpan span_of(const TimedOp& op, int track, const char* category) {
  constexpr double kMicroseconds = 1e6;
  return {op.name,
          category != nullptr ? category : op.phase,
          track,
          op.begin * kMicroseconds,
          (op.end - op.begin) * kMicroseconds,
          {{"kind", op.kind}, {"type", op.type}, {"phase", op.phase}}};
}

}  // namespace

std::unique_ptr<Backend> with_times(std::unique_ptr<Backend> backend, OpTimes& times, bool ops) {
  return std::make_unique<TimedBackend>(std::move(backend), times, ops);
}

void gather_times(OpTimes& times, Communicator& ranks) {
  using Span = std::array<double, 2>;
  for (TimedStep& step : times.steps) {
    const int cores = static_cast<int>(step.cores.size());
    const CoreBlock mine = block_of(ranks.rank(), ranks.ranks(), cores);
    const std::vector<TimedOp> ops = step.cores[mine.first];
    std::vector<Span> spans(step.cores.size() * ops.size());
    std::vector<size_t> offsets;
    for (int r = 0; r <= ranks.ranks(); ++r)
      offsets.push_back(block_of(r, ranks.ranks(), cores).first * ops.size() * sizeof(Span));
    for (size_t i = mine.first * ops.size(); i < mine.last * ops.size(); ++i) {
      const TimedOp& op = step.cores[i / ops.size()][i % ops.size()];
      spans[i] = {op.begin, op.end};
    }
    ranks.all_gather(std::as_writable_bytes(std::span(spans)), offsets);
    for (size_t i = 0; i < spans.size(); ++i) {
      std::vector<TimedOp>& core = step.cores[i / ops.size()];
      core.resize(ops.size());
      core[i % ops.size()] = ops[i % ops.size()];
      core[i % ops.size()].begin = spans[i][0];
      core[i % ops.size()].end = spans[i][1];
    }
  }
}

ChromeTrace chrome_trace(const OpTimes& times, const std::string& process) {
  ChromeTrace trace{{process}, {{"steps"}}, {}, {}};
  size_t cores = 0;
  for (const TimedStep& step : times.steps) cores = std::max(cores, step.cores.size());
  for (size_t r = 0; r < cores; ++r) trace.tracks.push_back({fmt::format("core {}", r)});
  for (const TimedStep& step : times.steps) {
    trace.spans.push_back({fmt::format("step {}", step.step),
                           "step",
                           0,
                           step.begin * 1e6,
                           (step.end - step.begin) * 1e6,
                           {}});
    for (size_t r = 0; r < step.cores.size(); ++r) {
      const int track = static_cast<int>(r) + 1;
      for (const TimedOp& op : step.cores[r]) trace.spans.push_back(span_of(op, track, nullptr));
      for (const TimedOp& op : step.collectives)
        trace.spans.push_back(span_of(op, track, "collective"));
    }
  }
  trace.notes = {
      {"times",
       "wall clock of this machine's threads, which emulate the cores; cores take turns on "
       "them, so spans say what a step is made of, not how fast the emulated machine is"},
      {"ops", "timed steps run op by op, neither fused nor shared between cores"}};
  return trace;
}

void add_input(ChromeTrace& trace, const OpTimes& times, const PipelineCounters& input) {
  if (times.steps.empty() || input.asked.empty()) return;
  const double last = times.steps.back().end;
  const int loop = static_cast<int>(trace.tracks.size());
  trace.tracks.push_back({"training loop"});
  trace.tracks.push_back({"input"});
  const auto add = [&](std::string name, int track, double begin, double end, TraceWords words) {
    begin -= times.zero, end -= times.zero;
    if (end <= 0 || begin >= last) return;
    begin = std::max(begin, 0.0);
    trace.spans.push_back(
        {std::move(name), "input", track, begin * 1e6, (end - begin) * 1e6, std::move(words)});
  };
  for (const PipelineCounters::Asked& a : input.asked) {
    add(fmt::format("wait for batch {}", a.step), loop, a.begin, a.begin + a.waited,
        {{"ready", fmt::format("{}", a.ready)}});
  }
  for (const PipelineCounters::Made& m : input.made) {
    add(fmt::format("batch {}", m.step), loop + 1, m.begin, m.end, {});
  }
}

}  // namespace twinrun
