// Measures steps, ops and input of a run, and relates them to the machine's peak rates.
#include "harness/profile/measured.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "harness/host/environment.h"
#include "harness/profile/ceilings.h"
#include "harness/profile/describe.h"
#include "harness/run/engine_setup.h"
#include "harness/run/op_times.h"
#include "harness/run/run.h"
#include "program/ops/op_def.h"

namespace twinrun {
namespace {

constexpr int64_t kWarmUp = 2;
constexpr double kQuiet = 0.15;  // relative difference of two peaks that an idle machine may show

double difference(double a, double b) { return std::abs(a - b) / std::max(a, b); }

constexpr double kUncertain = 0.05;  // standard error of a share that deserves a note

// Standard error of the mean share of a step in which the device waits for input.
double uncertainty_of_input(const std::vector<ProfileStep>& steps) {
  double sum = 0, squares = 0;
  for (const ProfileStep& step : steps) {
    const double share = step.seconds() > 0 ? step.input / step.seconds() : 0;
    sum += share;
    squares += share * share;
  }
  const auto n = static_cast<double>(steps.size());
  return n < 2 ? 1 : std::sqrt(std::max(0.0, squares - sum * sum / n) / (n - 1) / n);
}

class Measurer {
 public:
  Measurer(const Scenario& scenario, const MeasuredOptions& options)
      : scenario_(scenario), options_(options) {}
  Result<Profile> run();

 private:
  Result<RunResult> train_timed(bool ops, OpTimes& times);
  void add_ops(const OpTimes& times);
  void add_steps(const OpTimes& times, const PipelineCounters& input);
  void add_input(const PipelineCounters& input);

  const Scenario& scenario_;
  const MeasuredOptions& options_;
  std::optional<Experiment> experiment_;
  Program program_;
  int64_t steps_ = 0;
  double all_reduce_share_ = 0;
  Profile out_;
};

Result<RunResult> Measurer::train_timed(bool ops, OpTimes& times) {
  EngineSpec spec{.engine = options_.engine, .threads = options_.threads};
  TWINRUN_ASSIGN(EngineSetup setup, set_up(*experiment_, spec, options_.progress));
  program_ = setup.program;
  // Time the step before the first that counts as well: its end is where the host's time of that
  // one begins.
  times.first = kWarmUp - 1;
  times.count = steps_ + 1;
  const auto timed = with_times(std::move(setup.backend), times, ops);
  RunOptions o;
  o.name = fmt::format("{}{}", options_.engine, ops ? ", op by op" : "");
  o.steps = kWarmUp + steps_;
  o.threads = options_.threads;
  o.evaluate = o.digest_states = false;
  o.progress = options_.progress;
  o.stop = options_.stop;
  TWINRUN_ASSIGN(RunResult result, train(*experiment_, program_, *timed, o));
  if (static_cast<int64_t>(times.steps.size()) != times.count)
    return Error{"the run ended before its steps were timed: " + to_string(result.file.ended),
                 options_.engine, ""};
  return result;
}

// Time per op. Cores run concurrently on up to `threads` threads, so core times are divided by
// that.
void Measurer::add_ops(const OpTimes& times) {
  Profile& p = out_;
  const auto cores = static_cast<double>(program_.sharding.cores);
  const double at_once = std::min<double>(cores, options_.threads);
  std::map<std::string, double> seconds;
  for (const TimedStep& step : times.steps) {
    if (&step == &times.steps.front()) continue;
    for (const auto& core : step.cores)
      for (const TimedOp& op : core) seconds[op.name] += (op.end - op.begin) / at_once;
    for (const TimedOp& op : step.collectives) seconds[op.name] += op.end - op.begin;
  }
  double all = 0;
  for (auto& [name, s] : seconds) all += s /= static_cast<double>(steps_);
  for (ValueId id = 0; id < program_.graph.size(); ++id) {
    const Op& o = program_.graph.op(id);
    const auto found = seconds.find(o.name);
    if (found == seconds.end()) continue;
    ProfileOp op;
    op.category = category_of(o.kind);
    op.layer = framework_op_of(o.name);
    op.phase = std::string(to_string(o.phase));
    op.name = o.name;
    op.kind = std::string(name_of(o.kind));
    op.expression = expression_of(program_.graph, id);
    op.layout = to_string(o.type);
    op.seconds = found->second;
    op.share = all > 0 ? op.seconds / all : 0;
    op.flops = flops(program_.graph, id) * cores;
    op.bytes = static_cast<double>(o.type.bytes()) * cores;
    for (ValueId operand : o.operands)
      op.bytes += static_cast<double>(program_.graph.type(operand).bytes()) * cores;
    if (op.seconds > 0) {
      op.matrix_utilisation = class_of(o.kind) == OpClass::kDot
                                  ? std::min(1.0, op.flops / op.seconds / p.peak_flops)
                                  : 0;
      op.utilisation =
          std::max({op.matrix_utilisation, std::min(1.0, op.flops / op.seconds / p.peak_flops),
                    std::min(1.0, op.bytes / op.seconds / p.peak_bandwidth)});
    }
    if (class_of(o.kind) == OpClass::kDot) p.matrix_flops += op.flops;
    if (op.category == "all-reduce") all_reduce_share_ += op.share;
    p.flops += op.flops;
    p.bytes += op.bytes;
    p.ops.push_back(std::move(op));
  }
  p.unpadded_bytes = p.bytes;
}

void Measurer::add_steps(const OpTimes& times, const PipelineCounters& input) {
  Profile& p = out_;
  for (size_t i = 1; i < times.steps.size(); ++i) {
    const TimedStep &before = times.steps[i - 1], &step = times.steps[i];
    const double engine = step.end - step.begin, between = step.begin - before.end;
    double waited = 0;
    for (const PipelineCounters::Asked& asked : input.asked) {
      if (asked.step == step.step) waited = asked.waited;
    }
    ProfileStep s{step.step, engine * (1 - all_reduce_share_), engine * all_reduce_share_,
                  std::min(waited, between), 0};
    s.host = between - s.input;
    const auto n = static_cast<double>(times.steps.size() - 1);
    p.average.compute += s.compute / n;
    p.average.all_reduce += s.all_reduce / n;
    p.average.input += s.input / n;
    p.average.host += s.host / n;
    p.steps.push_back(s);
  }
  p.step_seconds = p.average.seconds();
}

// Figures for one batch. A stage that works ahead has processed more batches than training has
// read.
void Measurer::add_input(const PipelineCounters& c) {
  Profile& p = out_;
  const auto ready = std::ranges::count_if(c.asked, [](const auto& a) { return a.ready > 0; });
  const auto stage = [&](const char* name, const StageCounters& s, double batches,
                         const std::string& what) {
    if (s.elements == 0 && s.busy == 0) return;
    batches = std::max(batches, 1.0);
    p.input.stages.push_back({name, what, s.busy / batches, static_cast<double>(s.bytes) / batches,
                              false, s.elements, s.waiting / batches});
    p.input.host += s.busy / batches;
  };
  const auto once = [&](const char* name, const StageCounters& s, const std::string& what) {
    if (s.elements == 0 && s.busy == 0) return;
    p.input.stages.push_back(
        {name, what, s.busy, static_cast<double>(s.bytes), true, s.elements, s.waiting});
  };
  const auto of_samples = [&](const StageCounters& s) {
    return static_cast<double>(s.elements) / static_cast<double>(p.batch);
  };
  const auto of_batches = [](const StageCounters& s) { return static_cast<double>(s.elements); };
  once("read", c.read, "the source opened, files parsed or samples drawn");
  once("cache", c.cache, "decoded samples in a file");
  stage("shuffle", c.shuffle, of_samples(c.shuffle), "which samples a batch holds");
  stage("preprocess", c.map, of_samples(c.map),
        fmt::format("samples decoded and copied, on {} thread{}", c.parallel_calls,
                    c.parallel_calls == 1 ? "" : "s"));
  stage("batch", c.batch, of_batches(c.batch), "memory for batches, sample ids");
  stage(ready > 0 ? "read ahead" : "read on demand", c.prefetch, of_batches(c.prefetch),
        fmt::format("{} of {} batches were ready when requested", ready, c.asked.size()));
  stage("enqueue", c.enqueue, of_batches(c.enqueue), "batches cut into the cores' rows");
  p.input.overlapped = c.depth > 0;
  set_input_shares(p);
}

Result<Profile> Measurer::run() {
  if (options_.engine != "cpu" && options_.engine != "tpu") {
    return Error{
        fmt::format("the engine '{}' does not report the times of its ops; accepted: cpu, tpu",
                    options_.engine),
        "--engine", "profile cpu or tpu"};
  }
  if (options_.steps < 1 || scenario_.train.steps <= kWarmUp) {
    return Error{fmt::format("{} of {} steps, {} of them for warm-up: none is left to measure",
                             options_.steps, scenario_.train.steps, kWarmUp),
                 options_.steps < 1 ? "--steps" : scenario_.file + ": train.steps",
                 "take more steps"};
  }
  constexpr auto kMost = static_cast<int64_t>(PipelineCounters::kTimeline) - kWarmUp;
  if (options_.steps > kMost)
    return Error{fmt::format("{} is more than the {} steps whose input is timed one by one",
                             options_.steps, kMost),
                 "--steps", fmt::format("measure at most {}", kMost)};
  steps_ = std::min(options_.steps, scenario_.train.steps - kWarmUp);
  TWINRUN_ASSIGN(experiment_, make_experiment(scenario_));
  const Ceilings before = measure_ceilings(options_.threads);
  OpTimes whole, by_op;
  TWINRUN_ASSIGN(const RunResult plain, train_timed(false, whole));
  TWINRUN_ASSIGN(const RunResult timed, train_timed(true, by_op));
  const Ceilings after = measure_ceilings(options_.threads);

  Profile& p = out_;
  p.scenario = scenario_.name;
  p.source = "measured";
  p.machine = fmt::format("engine {}, {} thread{}", options_.engine, options_.threads,
                          options_.threads == 1 ? "" : "s");
  p.cores = program_.sharding.cores;
  p.batch = scenario_.train.batch;
  p.iterations_per_loop = scenario_.tpu.iterations_per_loop;
  p.peak_flops = std::max(before.flops, after.flops);
  p.peak_bandwidth = std::max(before.bandwidth, after.bandwidth);
  add_ops(by_op);
  add_steps(whole, plain.pipeline);
  add_input(plain.pipeline);
  p.matrix_utilisation = p.matrix_flops / p.step_seconds / p.peak_flops;
  p.memory_utilisation = p.bytes / p.step_seconds / p.peak_bandwidth;
  p.idle_device = (p.average.input + p.average.host) / p.step_seconds;
  p.idle_host = std::max(0.0, 1 - p.input.host / p.step_seconds);
  double op_by_op = 0;
  for (const ProfileOp& op : p.ops) op_by_op += op.seconds;
  p.notes = {
      fmt::format("measured on this machine, {} steps after {}; the peaks are its own: {} fused "
                  "multiply-adds in "
                  "registers, a triad over 192 MiB; bf16 products on AMX tiles may pass the first",
                  steps_, kWarmUp, before.isa),
      fmt::format("steps ran as usual; the ops were timed in another run, op by op and not fused: "
                  "{:.3f} ms against "
                  "{:.3f} ms of engine time a step",
                  op_by_op * 1e3, (p.average.compute + p.average.all_reduce) * 1e3),
      "emulated cores share the threads: FLOP, bytes and times are those of all cores",
      "the all-reduce's part of a step is its share of the ops' times"};
  if (const double error = uncertainty_of_input(p.steps); error > kUncertain)
    p.notes.insert(
        p.notes.begin(),
        fmt::format("what the device waits for input varies from step to step: its share "
                    "is uncertain by {:.0f} points (one standard error of {} steps); "
                    "measure more of them with --steps",
                    100 * error, p.steps.size()));
  if (const double apart = std::max(difference(before.flops, after.flops),
                                    difference(before.bandwidth, after.bandwidth));
      apart > kQuiet) {
    p.notes.insert(p.notes.begin(),
                   fmt::format("this machine was busy: its peaks before and after the steps differ "
                               "by {:.0f} %; the higher ones are used",
                               apart * 100));
  }
  p.environment = environment();
  p.environment["ceiling_flops"] = fmt::format("{:.1f} GFLOP/s", p.peak_flops / 1e9);
  p.environment["ceiling_bandwidth"] = fmt::format("{:.1f} GB/s", p.peak_bandwidth / 1e9);
  return std::move(out_);
}

}  // namespace

Result<Profile> measured_profile(const Scenario& scenario, const MeasuredOptions& options) {
  return Measurer(scenario, options).run();
}

}  // namespace twinrun
