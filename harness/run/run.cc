// Runs the training loop of one engine: feeds steps, records scalars and digests, evaluates, stops.
#include "harness/run/run.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <optional>
#include <span>

#include "backends/core/communicator.h"
#include "checkpoints/container/spill_file.h"
#include "harness/experiment/imported.h"
#include "harness/host/environment.h"
#include "harness/run/loop.h"
#include "harness/run/step_loop.h"
#include "scenarios/model.h"
#include "scenarios/schedule.h"

namespace twinrun {
namespace {

bool finite(const Tensor& t) {
  if (t.dtype() == DType::kF32)
    return std::ranges::all_of(t.as<float>(), [](float v) { return std::isfinite(v); });
  if (t.dtype() == DType::kF64)
    return std::ranges::all_of(t.as<double>(), [](double v) { return std::isfinite(v); });
  return true;
}

// Watches for the first op that turns finite operands into something else.
class FirstNonFiniteSink : public TraceSink {
 public:
  void on_op(const OpEvent& event) override {
    // A constant may be infinite on purpose: -inf, the start of a maximum.
    if (first_non_finite || event.op().kind == OpKind::kConstant) return;
    for (size_t r = 0; r < event.outputs.size(); ++r) {
      if (finite(event.outputs[r])) continue;
      const auto operands_finite = [&](const std::vector<Tensor>& in) {
        return std::ranges::all_of(in, finite);
      };
      const bool clean = event.op().kind == OpKind::kAllReduce
                             ? std::ranges::all_of(event.inputs, operands_finite)
                             : operands_finite(event.inputs[r]);
      if (!clean) continue;
      bool nan = false;
      if (event.outputs[r].dtype() == DType::kF32) {
        for (float v : event.outputs[r].as<float>()) nan = nan || v != v;
      }
      first_non_finite =
          FirstNonFinite{event.step, static_cast<int>(r), event.op().name,
                         std::string(to_string(event.op().phase)), nan ? "NaN" : "Inf"};
      return;
    }
  }
  std::optional<FirstNonFinite> first_non_finite;
};

double as_double(const Tensor& scalar) {
  return scalar.dtype() == DType::kF64 ? scalar.as<double>()[0]
                                       : static_cast<double>(scalar.as<float>()[0]);
}

double square_sum(const Tensor& t) {
  double sum = 0;
  if (t.dtype() == DType::kF64) {
    for (double v : t.as<double>()) sum += v * v;
  } else {
    for (float v : t.as<float>()) sum += static_cast<double>(v) * static_cast<double>(v);
  }
  return sum;
}

StepScalars scalars_of(const Program& program, const StepOutputs& outputs, float rate) {
  StepScalars s;
  s.learning_rate = rate;
  double squares = 0;
  for (size_t i = 0; i < program.outputs.size(); ++i) {
    const std::string& name = program.outputs[i].name;
    if (name == "loss") {
      double sum = 0;
      for (const auto& replica : outputs) sum += as_double(replica[i]);
      s.loss = static_cast<float>(sum / static_cast<double>(outputs.size()));
      s.loss_replica0 = static_cast<float>(as_double(outputs[0][i]));
    } else if (name.ends_with(".grad")) {
      squares += square_sum(outputs[0][i]);
    }
  }
  s.gradient_norm = static_cast<float>(std::sqrt(squares));
  return s;
}

// With loops, report the same as TPUEstimator: replica 0's loss of the last step of the loop.
void report_step(Progress& progress, const HostLoop& loop, int64_t log_every, int64_t done,
                 int64_t first, const StepScalars& last) {
  const float loss = loop.loops() ? last.loss_replica0 : last.loss;
  progress.step(done - first, fmt::format("loss {:.4g}", loss));
  if (loop.expected(log_every, done)) {
    progress.log(fmt::format(
        "after step {}: loss {:.9g}{}, learning rate {:.4g}, gradient norm {:.4g}", done - 1, loss,
        loop.loops() ? " (replica 0)" : "", last.learning_rate, last.gradient_norm));
  }
}

RunEnd diverged(std::string reason) { return {RunEnd::Kind::kDiverged, std::move(reason)}; }

struct Runner {
  const Experiment& experiment;
  const Program& program;
  const RunOptions& options;
  Engine& engine;
  StepLoop loop;
  std::optional<Evaluator> evaluator;  // none for an imported step without held-out batches
  RunResult result;
  std::optional<SpillFile> spill;
  bool may_leave_out = false;
  int64_t left_out_in_a_row = 0;

  Runner(const Experiment& e, const Program& p, const RunOptions& o, Engine& on, bool shows_ops)
      : experiment(e),
        program(p),
        options(o),
        engine(on),
        loop(e, p, on, start()),
        may_leave_out(!shows_ops) {
    if (e.has_held_out()) evaluator.emplace(e, o.threads);
    if (o.spill_folder) spill.emplace(*o.spill_folder);
  }

  bool records() const {
    return options.ranks == nullptr || options.all_record || options.ranks->rank() == 0;
  }

  // The ranks must be of one version, and have read the same files. Their instruction sets may
  // differ, because bits do not depend on them.
  Status check_same_on_all_ranks() const {
    if (options.ranks == nullptr) return Ok{};
    const auto& about = result.file.environment;
    DigestBuilder builder;
    for (const std::string& part :
         {result.file.scenario, result.file.engine_settings, std::to_string(options.first_step),
          about.at("version"), about.at("contract"), about.at("data"),
          about.at(std::string(kInitialState))})
      builder.add(part);
    const std::string mine = builder.finish().hex();
    const auto all = from_all_ranks(*options.ranks, std::as_bytes(std::span(mine)));
    for (size_t r = 1; r < all.size(); ++r) {
      if (all[r] == all[0]) continue;
      return Error{
          fmt::format("rank {} has another scenario, data, checkpoint or version of twinrun "
                      "than rank 0",
                      r),
          "", "give all ranks the same files and the same program"};
    }
    return Ok{};
  }

  Status evaluate(int64_t done) {
    if (!options.evaluate || !evaluator || !records()) return Ok{};
    TWINRUN_ASSIGN(Evaluation e, evaluator->evaluate(program, loop.states, done));
    result.file.evaluations.push_back(e);
    return Ok{};
  }

  Status keep(int64_t done, bool periodic) {
    if (periodic && !records()) return Ok{};
    Checkpoint c = to_checkpoint(program, loop.states, experiment.scenario, done);
    c.scenario = result.file.scenario;
    c.scenario_digest = result.file.scenario_digest;
    c.engine = result.file.engine;
    if (periodic && options.on_checkpoint) options.on_checkpoint(result.file, c);
    if (periodic && spill) {
      for (auto& [name, tensor] : c.tensors) tensor.value = spill->keep(tensor.value);
    }
    result.file.checkpoints.push_back(std::move(c));
    return Ok{};
  }

  // The state before a step, by running from the start again; used where it was not kept.
  Result<States> state_before(int64_t step) const {
    StepLoop again(experiment, program, engine, start());
    for (int64_t i = options.first_step; i < step; ++i) TWINRUN_RETURN_IF_ERROR(again.run(i));
    return std::move(again.states);
  }

  States start() const {
    return options.start ? *options.start : initial_states(experiment, program);
  }

  // Returns false when the run is over.
  Result<bool> one_step(int64_t step) {
    TWINRUN_RETURN_IF_ERROR(loop.run(step, options.observer, may_leave_out));
    const float rate = learning_rate(experiment.scenario.optimizer, step);
    const StepScalars s = scalars_of(program, loop.outputs, rate);
    result.file.steps.push_back(s);
    if (options.digest_states && records()) {
      result.file.state_digests.push_back(
          to_checkpoint(program, loop.states, experiment.scenario, step + 1).root_digest());
    }
    if (std::isfinite(s.loss) && std::isfinite(s.gradient_norm)) {
      left_out_in_a_row = 0;
      return true;
    }
    if (may_leave_out && update_left_out(program, loop.before, loop.states, loop.outputs)) {
      ++result.left_out;
      if (++left_out_in_a_row <= kMaxLeftOut) return true;
    }
    if (loop.before.empty()) {
      TWINRUN_ASSIGN(loop.before, state_before(step));
    }
    result.first_non_finite = find_first_non_finite(engine, step, loop.before, loop.inputs);
    if (!result.first_non_finite) {
      // The engine does not show its ops.
      const bool lost = !std::isfinite(s.loss);
      const bool nan = std::isnan(lost ? s.loss : s.gradient_norm);
      result.first_non_finite = FirstNonFinite{step, 0, "", "", nan ? "NaN" : "Inf"};
      result.file.ended = diverged(fmt::format("{} in {} at step {}", result.first_non_finite->what,
                                               lost ? "the loss" : "the gradients", step));
      return false;
    }
    result.file.ended = diverged(
        fmt::format("{} first produces {} at step {} on core {}", result.first_non_finite->op,
                    result.first_non_finite->what, step, result.first_non_finite->replica));
    return false;
  }
};

}  // namespace

Digest digest_of_weights(const Program& program, const ReplicaState& state) {
  DigestBuilder builder;
  for (size_t i = 0; i < program.state.size(); ++i) {
    const StateRole role = program.state[i].role;
    if (role != StateRole::kParameter && role != StateRole::kStatistic) continue;
    builder.add(program.state[i].name);
    builder.add(digest(state.vars[i]));
  }
  return builder.finish();
}

bool update_left_out(const Program& program, const States& before, const States& after,
                     const StepOutputs& outputs) {
  bool all_finite = true;
  for (const std::vector<Tensor>& replica : outputs) {
    for (const Tensor& output : replica)
      all_finite = all_finite && (!output.valid() || finite(output));
  }
  if (all_finite) return false;
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role == StateRole::kStatistic) continue;
    for (size_t r = 0; r < after.size(); ++r) {
      if (!after[r].vars[i].same_bits(before[r].vars[i])) return false;
    }
  }
  return true;
}

std::vector<int64_t> spread_steps(int64_t steps, int64_t count) {
  count = std::min(count, steps);
  std::vector<int64_t> out;
  for (int64_t i = 0; i < count; ++i) out.push_back(count == 1 ? 0 : i * (steps - 1) / (count - 1));
  return out;
}

std::optional<FirstNonFinite> find_first_non_finite(Engine& engine, int64_t step, States states,
                                                    const StepInputs& inputs) {
  FirstNonFiniteSink sink;
  StepOutputs outputs;
  if (!engine.step(step, states, inputs, outputs, &sink)) return std::nullopt;
  return sink.first_non_finite;
}

std::string outcome(const RunFile& file, int64_t last) {
  if (file.ended.interrupted())
    return fmt::format("partial: interrupted at step {} of {}",
                       file.first_step + static_cast<int64_t>(file.steps.size()), last);
  if (file.evaluations.empty())
    return file.ended.completed() && !file.steps.empty()
               ? fmt::format("loss {:.6g}", file.steps.back().loss)
               : to_string(file.ended);
  const Evaluation& e = file.evaluations.back();
  if (std::isnan(e.accuracy)) return fmt::format("held-out loss {:.4f}", e.loss);
  return fmt::format("held-out loss {:.4f}, accuracy {:.2f} %", e.loss, 100 * e.accuracy);
}

std::string settings_of(const Program& program, const Capabilities& capabilities) {
  return fmt::format("cores={} batch={} {}", program.sharding.cores,
                     program.batch * program.sharding.cores, capabilities.settings);
}

Result<RunResult> train(const Experiment& experiment, const Program& program, Backend& backend,
                        const RunOptions& options) {
  const Scenario& s = experiment.scenario;
  const Capabilities capabilities = backend.capabilities();
  const int64_t last = options.steps > 0 ? options.steps : s.train.steps;
  if (capabilities.ours) {
    const int64_t every = options.spill_folder ? 0 : s.train.checkpoint_every;
    const int64_t kept = every > 0 ? (last - options.first_step) / every : 0;
    TWINRUN_RETURN_IF_ERROR(check_memory(experiment, program, kept));
  }
  TWINRUN_ASSIGN(const std::unique_ptr<Engine> engine, backend.prepare(program));
  Runner run(experiment, program, options, *engine, capabilities.op_trace);
  const int64_t total = program.batch * program.sharding.cores;
  const HostLoop loop(s, program.sharding.cores, capabilities.name);

  RunFile& file = run.result.file;
  file.engine = capabilities.name;
  file.cores = program.sharding.cores;
  file.batch = total;
  file.first_step = options.first_step;
  file.scenario = resolved_toml(s);
  file.scenario_digest = scenario_digest(s).hex();
  file.engine_settings = settings_of(program, capabilities);
  file.environment = environment();
  file.environment["data"] = experiment.data->digest.hex();
  if (experiment.imported) keep_files(s.program_files, file.environment);

  file.environment[std::string(kInitialState)] =
      digest_of_weights(program, run.loop.states.front()).hex();
  TWINRUN_RETURN_IF_ERROR(run.check_same_on_all_ranks());
  const auto begin = std::chrono::steady_clock::now();
  if (options.progress != nullptr) {
    if (const std::string note = loop.note(s.train); !note.empty()) options.progress->note(note);
    for (const std::string& note : experiment.data->notes) options.progress->note(note);
    options.progress->begin(options.name, last - options.first_step);
  }
  int64_t done = options.first_step;
  for (int64_t step = options.first_step; step < last; ++step) {
    // A signal may reach one rank earlier than another; all stop after the same step.
    if (any_rank(options.ranks, options.stop != nullptr && options.stop->load())) {
      if (step == options.first_step || loop.returns(step)) {
        file.ended = {RunEnd::Kind::kInterrupted, ""};
        break;
      }
      if (options.progress != nullptr) options.progress->note(loop.stopping(step, last));
    }
    TWINRUN_ASSIGN(const bool go_on, run.one_step(step));
    done = step + 1;
    if (options.progress != nullptr)
      report_step(*options.progress, loop, s.train.log_every, done, options.first_step,
                  file.steps.back());
    if (!go_on) break;
    if (done < last && loop.expected(s.train.eval_every, done))
      TWINRUN_RETURN_IF_ERROR(run.evaluate(done));
    if (done < last && loop.expected(s.train.checkpoint_every, done))
      TWINRUN_RETURN_IF_ERROR(run.keep(done, true));
  }
  // An interrupt may come where a periodic evaluation or checkpoint has just been made.
  if (file.evaluations.empty() || file.evaluations.back().step != done)
    TWINRUN_RETURN_IF_ERROR(run.evaluate(done));
  if (file.checkpoints.empty() || file.checkpoints.back().step != done)
    TWINRUN_RETURN_IF_ERROR(run.keep(done, false));
  run.result.pipeline = run.loop.counters();
  run.result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (options.progress != nullptr) options.progress->end(outcome(file, last));
  run.result.states = std::move(run.loop.states);
  return std::move(run.result);
}

std::optional<int64_t> first_difference(const RunFile& a, const RunFile& b) {
  const size_t n = std::min(a.state_digests.size(), b.state_digests.size());
  for (size_t i = 0; i < n; ++i) {
    if (a.state_digests[i] != b.state_digests[i]) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

const Evaluation& final_evaluation(const RunResult& run) { return run.file.evaluations.back(); }

}  // namespace twinrun
