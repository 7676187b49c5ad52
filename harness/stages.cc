#include "harness/stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/reference_cache.h"
#include "harness/trajectory.h"
#include "program/analysis/liveness.h"

namespace twinrun {
namespace {

std::string run_path(const Stage& stage, const std::string& name) {
  return (std::filesystem::path(stage.options.directory) / "runs" / (name + ".h5")).string();
}

std::string title(const std::string& name, const Capabilities& engine, const Program& program) {
  return fmt::format("{:<4} {}{}", name, engine.name,
                     program.sharding.cores > 1
                         ? fmt::format(", {} cores x {}", program.sharding.cores, program.batch)
                         : fmt::format(", batch {}", program.batch));
}

// A corner of the experiment that is there: written, if it is to be kept.
Status take(Stage& stage, const std::string& name, Program program, RunResult result, bool keep) {
  if (keep) {
    TWINRUN_RETURN_IF_ERROR(write_run(run_path(stage, name), result.file));
    stage.programs[name] = std::move(program);
  }
  stage.runs[name] = std::move(result);
  return Ok{};
}

// Runs one corner.
Status corner(Stage& stage, const std::string& name, const Experiment& experiment, Program program,
              Backend& backend, RunOptions options, bool keep = true) {
  options.name = title(name, backend.capabilities(), program);
  options.progress = stage.progress;
  options.stop = stage.stop;
  options.threads = stage.options.threads;
  TWINRUN_ASSIGN(RunResult result, train(experiment, program, backend, options));
  return take(stage, name, std::move(program), std::move(result), keep);
}

// A corner of the baseline, from the cache if it is there.
Status reference(Stage& stage, const std::string& name, const Experiment& experiment,
                 Program program, Backend& backend, RunOptions options, bool keep = true) {
  const ReferenceCache cache(stage.options.cache, stage.options.fresh);
  const std::string& engine = stage.options.baseline;
  auto kept = cache.find(experiment, program, engine, options);
  if (!kept) {
    TWINRUN_RETURN_IF_ERROR(corner(stage, name, experiment, program, backend, options, keep));
    cache.keep(experiment, program, engine, options, stage.runs[name]);
    return Ok{};
  }
  if (stage.progress != nullptr) {
    stage.progress->begin(title(name, backend.capabilities(), program), 0);
    stage.progress->end(outcome(kept->file) + " (kept)");
  }
  return take(stage, name, std::move(program), std::move(*kept), keep);
}

Result<std::unique_ptr<Backend>> baseline(const Stage& stage, int threads, bool poison = false) {
  BackendOptions o = backend_options(stage.experiment.scenario, threads);
  o.poison_memory = poison;
  return make_backend(stage.options.baseline, o);
}
// Everything below knows of it what any engine declares.
Result<std::unique_ptr<Backend>> subject(const Stage& stage) {
  const Scenario& s = stage.experiment.scenario;
  const BackendOptions o = backend_options(s, stage.options.threads);
  if (stage.options.make_subject) return stage.options.make_subject(o);
  TWINRUN_ASSIGN(auto engine, make_backend(stage.options.subject, o));
  return with_faults(std::move(engine), stage.faults, s.seed, stage.fault_log);
}

// The first step after which two runs' states differ.
std::optional<int64_t> first_difference(const RunFile& a, const RunFile& b) {
  const size_t n = std::min(a.state_digests.size(), b.state_digests.size());
  for (size_t i = 0; i < n; ++i) {
    if (a.state_digests[i] != b.state_digests[i]) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

double final_loss(const RunResult& run) { return run.file.evaluations.back().loss; }

ProbePolicy policy_of(const Stage& stage, const Program& program) {
  const std::string& probe = stage.experiment.scenario.diagnose.probe;
  ProbePolicy policy;
  if (probe == "every") return policy;
  if (probe != "auto") {
    policy.every = std::max<int64_t>(1, std::stoll(probe));
    return policy;
  }
  policy.screen = true;
  // Replaying a step costs about this much on one core, as measured: two f64 products per dot, an
  // interval per element.
  double elements = 0;
  for (const Op& op : program.graph.ops()) elements += static_cast<double>(op.type.elements());
  const double cores = program.sharding.cores;
  const double seconds = cores * (step_flops(program) * 1.5e-10 + elements * 2.5e-9);
  constexpr double kBudgetSeconds = 5;  // of one core: the choice may not depend on the machine
  const auto steps = static_cast<double>(stage.experiment.scenario.train.steps);
  policy.every =
      std::max<int64_t>(1, static_cast<int64_t>(std::ceil(steps * seconds / kBudgetSeconds)));
  return policy;
}

// |a - b| / |b|, over all parameters of replica 0.
double relative_distance(const Program& program, const States& a, const States& b) {
  double gap = 0, norm = 0;
  for (size_t i = 0; i < program.state.size(); ++i) {
    if (program.state[i].role != StateRole::kParameter) continue;
    const std::vector<double> x = as_doubles(a[0].vars[i]), y = as_doubles(b[0].vars[i]);
    for (size_t k = 0; k < x.size(); ++k) {
      gap += (x[k] - y[k]) * (x[k] - y[k]);
      norm += y[k] * y[k];
    }
  }
  return norm > 0 ? std::sqrt(gap / norm) : 0;
}

// The first steps from the initial state: the state after them, and the last one's outputs.
Result<States> first_steps(Stage& stage, const Program& program, Backend& backend, int64_t steps,
                           StepOutputs& outputs) {
  const Experiment& e = stage.experiment;
  Feed feed(e.data->train, e.feed_options(e.scenario.train.batch));
  TWINRUN_ASSIGN(const auto engine, backend.prepare(program));
  States states = initial_states(program, e.scenario.seed);
  for (int64_t step = 0; step < steps; ++step) {
    TWINRUN_ASSIGN(const Batch batch, feed.batch(step));
    TWINRUN_ASSIGN(const StepInputs inputs, step_inputs(program, e.scenario, batch, step));
    TWINRUN_RETURN_IF_ERROR(engine->step(step, states, inputs, outputs));
  }
  return states;
}

// One step's gradient from the initial state: relative distance of `a`'s from `b`'s.
Result<double> gradient_drift(Stage& stage, const Program& program, Backend& a, Backend& b) {
  StepOutputs outputs[2];
  TWINRUN_RETURN_IF_ERROR(first_steps(stage, program, a, 1, outputs[0]));
  TWINRUN_RETURN_IF_ERROR(first_steps(stage, program, b, 1, outputs[1]));
  double gap = 0, norm = 0;
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    if (!program.outputs[o].name.ends_with(".grad")) continue;
    const std::vector<double> x = as_doubles(outputs[0][0][o]), y = as_doubles(outputs[1][0][o]);
    for (size_t k = 0; k < x.size(); ++k) {
      gap += (x[k] - y[k]) * (x[k] - y[k]);
      norm += y[k] * y[k];
    }
  }
  return norm > 0 ? std::sqrt(gap / norm) : 0.0;
}

// What the algebra of the update alone moves: the weights after one update by the whole batch on the baseline, by the TPU's
// formula and by the CPU's.
Result<double> algebra_drift(Stage& stage, Backend& cpu) {
  const Experiment& e = stage.experiment;
  const Program ours = e.whole(), theirs = e.whole(Experiment::Stack::kTpu);
  StepOutputs outputs;
  const int64_t steps = e.scenario.train.accumulate;
  TWINRUN_ASSIGN(const States a, first_steps(stage, theirs, cpu, steps, outputs));
  TWINRUN_ASSIGN(const States b, first_steps(stage, ours, cpu, steps, outputs));
  return relative_distance(ours, a, b);
}

}  // namespace

BackendOptions backend_options(const Scenario& scenario, int threads) {
  BackendOptions o;
  o.threads = threads;
  o.tpu.poison = scenario.tpu.poison;
  const std::string& p = scenario.tpu.precision;
  o.tpu.precision = p == "f32"       ? DotPrecision::kF32
                    : p == "high"    ? DotPrecision::kBf16x3
                    : p == "highest" ? DotPrecision::kBf16x6
                                     : DotPrecision::kBf16;
  return o;
}

Status write_snapshot(Stage& stage) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(stage.options.directory) / "runs",
                                      error);
  if (error)
    return Error{"cannot create the folder: " + error.message(), stage.options.directory,
                 "choose another with -o"};
  const Program program = stage.experiment.whole();
  Checkpoint c = to_checkpoint(program, initial_states(program, stage.experiment.scenario.seed),
                               stage.experiment.scenario, 0);
  c.scenario = resolved_toml(stage.experiment.scenario);
  c.scenario_digest = scenario_digest(stage.experiment.scenario).hex();
  return write_checkpoint((std::filesystem::path(stage.options.directory) / "init.h5").string(), c);
}

Status run_references(Stage& stage) {
  const Experiment& e = stage.experiment;
  const int threads = stage.options.threads, other = threads + 1;
  TWINRUN_ASSIGN(const auto cpu, baseline(stage, threads));
  TWINRUN_RETURN_IF_ERROR(reference(stage, "R", e, e.whole(), *cpu, {}));
  if (stage.stopped()) return Ok{};
  const RunResult& r = stage.runs["R"];

  // R': other threads, memory full of NaN patterns. The promise is the same bits.
  TWINRUN_ASSIGN(const auto poisoned, baseline(stage, other, true));
  RunOptions again;
  again.evaluate = true;
  TWINRUN_RETURN_IF_ERROR(corner(stage, "R2", e, e.whole(), *poisoned, again));
  stage.evidence.reference_parts = first_difference(r.file, stage.runs["R2"].file);
  stage.evidence.controls.push_back(
      {fmt::format("R = R' (other thread count: {} and {}; poisoned memory)", threads, other),
       !stage.evidence.reference_parts, true,
       stage.evidence.reference_parts
           ? fmt::format("states part after step {}", *stage.evidence.reference_parts)
           : fmt::format("{} state digests equal", r.file.state_digests.size())});
  if (r.birth) {
    stage.evidence.reference_birth = r.birth;
    stage.evidence.reference_birth_run = "R";
  }
  if (stage.stopped() || stage.evidence.reference_parts || r.birth) return Ok{};

  if (stage.sharded()) {
    TWINRUN_RETURN_IF_ERROR(reference(stage, "R1", e, e.per_core(), *cpu, {}));
    if (stage.stopped()) return Ok{};
  }
  if (stage.own_s()) {
    TWINRUN_RETURN_IF_ERROR(reference(stage, "S", e, stage.subject_program(e), *cpu, {}));
    if (stage.runs["S"].birth) {
      stage.evidence.reference_birth = stage.runs["S"].birth;
      stage.evidence.reference_birth_run = "S";
    }
  } else {
    stage.programs["S"] = stage.programs["R"];
    stage.runs["S"] = stage.runs["R"];
  }
  if (e.two_algebras()) {
    TWINRUN_ASSIGN(stage.evidence.algebra_drift, algebra_drift(stage, *cpu));
  }
  return Ok{};
}

Status run_subject(Stage& stage) {
  if (stage.evidence.reference_parts || stage.evidence.reference_birth) return Ok{};
  const Experiment& e = stage.experiment;
  TWINRUN_ASSIGN(const auto engine, subject(stage));
  const Capabilities declared = engine->capabilities();
  stage.evidence.subject = declared;
  stage.evidence.cores = e.sharding.cores;
  stage.evidence.quick = stage.options.quick;

  if (stage.sharded()) {
    const Program one = as_computed_by(declared, e.per_core(Experiment::Stack::kTpu));
    stage.programs["E1"] = one;
    stage.probe_e1.emplace(stage.programs["E1"], declared, ProbePolicy{3, 0}, &stage.pool);
    RunOptions o;
    o.observer = &*stage.probe_e1;
    TWINRUN_RETURN_IF_ERROR(corner(stage, "E1", e, one, *engine, o));
    if (stage.stopped()) return Ok{};
  }

  const Program program = as_computed_by(declared, stage.programs["S"]);
  stage.programs["T"] = program;
  stage.probe_t.emplace(stage.programs["T"], declared, policy_of(stage, program), &stage.pool);
  RunOptions o;
  o.observer = &*stage.probe_t;
  TWINRUN_RETURN_IF_ERROR(corner(stage, "T", e, program, *engine, o));
  if (stage.stopped()) return Ok{};
  const RunResult& t = stage.runs["T"];
  if (t.birth) stage.evidence.subject_birth = t.birth;
  stage.evidence.engine_drift = relative_distance(program, t.states, stage.runs["S"].states);
  stage.evidence.t_equals_s = t.file.state_digests == stage.runs["S"].file.state_digests;
  const bool one_core_equal = !stage.sharded() || stage.runs["E1"].file.state_digests ==
                                                      stage.runs["R1"].file.state_digests;
  stage.evidence.identical =
      t.file.state_digests == stage.runs["R"].file.state_digests && one_core_equal;

  // T': the first three steps once more.
  RunOptions again;
  again.name = "T'";
  again.steps = std::min<int64_t>(3, e.scenario.train.steps);
  again.evaluate = false;
  again.threads = stage.options.threads;
  TWINRUN_ASSIGN(const RunResult repeated, train(e, program, *engine, again));
  const auto parts = first_difference(repeated.file, t.file);
  stage.evidence.subject_parts = parts;
  stage.evidence.controls.push_back(
      {"T = T' (the subject again, first steps)", !parts, true,
       parts ? fmt::format("states part after step {}", *parts)
             : fmt::format("{} state digests equal", repeated.file.state_digests.size())});
  return Ok{};
}

Status check_emulator(Stage& stage) {
  if (stage.options.subject != "tpu" || stage.options.baseline != "cpu" ||
      !stage.runs.contains("T"))
    return Ok{};
  const Experiment& e = stage.experiment;
  BackendOptions o = backend_options(e.scenario, stage.options.threads);
  o.tpu.precision = DotPrecision::kF32;
  TWINRUN_ASSIGN(const auto degenerate, make_backend("tpu", o));
  RunOptions run;
  run.steps = std::min<int64_t>(3, e.scenario.train.steps);
  run.evaluate = false;
  run.threads = stage.options.threads;
  TWINRUN_ASSIGN(const RunResult f32, train(e, stage.programs["S"], *degenerate, run));
  const auto parts = first_difference(f32.file, stage.runs["S"].file);
  stage.evidence.emulator_fails = parts.has_value();
  stage.evidence.controls.push_back(
      {"emulator at precision f32 = S, first steps", !parts, true,
       parts ? fmt::format("states part after step {}", *parts)
             : fmt::format("{} state digests equal", f32.file.state_digests.size())});
  TWINRUN_ASSIGN(const auto cpu, baseline(stage, stage.options.threads));
  TWINRUN_ASSIGN(const auto declared, subject(stage));
  o.tpu.precision = DotPrecision::kBf16x6;
  TWINRUN_ASSIGN(const auto highest, make_backend("tpu", o));
  TWINRUN_ASSIGN(stage.evidence.default_drift,
                 gradient_drift(stage, stage.programs["S"], *declared, *cpu));
  TWINRUN_ASSIGN(stage.evidence.highest_drift,
                 gradient_drift(stage, stage.programs["S"], *highest, *cpu));
  return Ok{};
}

Status localise(Stage& stage) {
  Evidence& e = stage.evidence;
  e.command = stage.options.command;
  if (!stage.probe_t) return Ok{};
  e.worst_ratio =
      std::max(stage.probe_t->worst_ratio(), stage.probe_e1 ? stage.probe_e1->worst_ratio() : 0.0);
  const bool found = !stage.probe_t->violations().empty();
  if (found || e.subject_birth) {
    e.violations = stage.probe_t->violations();
    e.violations_run = "T";
    const int64_t bad = found ? e.violations.front().step : e.subject_birth->step;
    const auto clean = stage.probe_t->last_clean();
    e.localised = bad == 0 || (clean && clean->first == bad);
    if (!e.localised && clean) {
      // Probes left a gap: go through it step by step from the last state known to be good.
      TWINRUN_ASSIGN(const auto engine, subject(stage));
      Lockstep closer(stage.programs["T"], engine->capabilities(), ProbePolicy{}, &stage.pool);
      RunOptions o;
      o.observer = &closer;
      o.start = clean->second;
      o.first_step = clean->first;
      o.steps = bad + 1;
      o.evaluate = false;
      TWINRUN_RETURN_IF_ERROR(
          corner(stage, "T*", stage.experiment, stage.programs["T"], *engine, o, false));
      stage.runs.erase("T*");
      if (!closer.violations().empty()) {
        e.violations = closer.violations();
        e.localised = true;
      }
    }
  } else if (stage.probe_e1 && !stage.probe_e1->violations().empty()) {
    e.violations = stage.probe_e1->violations();
    e.violations_run = "E1";
  }
  return Ok{};
}

Status compare_meaning(Stage& stage) {
  if (!stage.sharded() || !stage.runs.contains("T")) return Ok{};
  const Experiment& e = stage.experiment;
  const Program whole = e.whole();
  std::vector<ProbeState> states;
  states.emplace_back(0,
                      to_checkpoint(whole, initial_states(whole, e.scenario.seed), e.scenario, 0));
  const RunResult& r = stage.runs["R"];
  states.emplace_back(e.scenario.train.steps - 1,
                      to_checkpoint(whole, r.states, e.scenario, e.scenario.train.steps));
  if (stage.progress != nullptr)
    stage.progress->begin("switches: meaning of the sharded program, in binary64", 1);
  TWINRUN_ASSIGN(stage.evidence.meaning, probe_meaning(e, states, stage.options.threads));
  if (stage.progress != nullptr) {
    stage.progress->end(
        fmt::format("one-step gradient drift S - R {:.3g}", stage.evidence.meaning.drift));
  }
  return Ok{};
}

Status compare_trajectories(Stage& stage) {
  Evidence& e = stage.evidence;
  if (!stage.runs.contains("T")) return Ok{};
  stage.r_losses = {final_loss(stage.runs["R"])};
  stage.s_losses = {final_loss(stage.runs["S"])};
  stage.t_losses = {final_loss(stage.runs["T"])};
  const bool wanted = !stage.options.quick && e.violations.empty() && !e.identical;
  const Scenario& s = stage.experiment.scenario;
  TWINRUN_ASSIGN(const auto cpu, baseline(stage, stage.options.threads));
  TWINRUN_ASSIGN(const auto engine, subject(stage));
  for (int i = 1; wanted && i < s.diagnose.seeds; ++i) {
    TWINRUN_ASSIGN(const Experiment other,
                   with_seed(stage.experiment, s.seed + static_cast<uint64_t>(i)));
    const auto loss_of = [&](const std::string& name, Program program,
                             Backend& backend) -> Result<double> {
      RunOptions o;
      o.digest_states = false;
      const std::string key = fmt::format("{}#{}", name, i);
      const auto run = name == "T" ? corner : reference;
      TWINRUN_RETURN_IF_ERROR(run(stage, key, other, std::move(program), backend, o, false));
      const double loss = final_loss(stage.runs[key]);
      stage.runs.erase(key);
      return loss;
    };
    TWINRUN_ASSIGN(const double r, loss_of("R", other.whole(), *cpu));
    if (stage.stopped()) return Ok{};
    double sharded = r;
    if (stage.sharded() && e.meaning.differs()) {
      TWINRUN_ASSIGN(sharded, loss_of("S", other.sharded(other.sharding), *cpu));
      if (stage.stopped()) return Ok{};
    }
    TWINRUN_ASSIGN(const double t, loss_of("T", as_computed_by(engine->capabilities(), stage.subject_program(other)), *engine));
    if (stage.stopped()) return Ok{};
    stage.r_losses.push_back(r);
    stage.s_losses.push_back(sharded);
    stage.t_losses.push_back(t);
  }
  const Margin margin = choose_margin(s.diagnose.margin, stage.r_losses);
  e.trajectories.push_back(
      compare_paired("T - R", "what the user sees", stage.t_losses, stage.r_losses, margin));
  if (stage.sharded() && e.meaning.differs()) {
    e.trajectories.push_back(compare_paired("S - R", "what sharding alone does, on cpu",
                                            stage.s_losses, stage.r_losses, margin));
    e.trajectories.push_back(
        compare_paired("T - S", "what the engine adds", stage.t_losses, stage.s_losses, margin));
  }
  return Ok{};
}

}  // namespace twinrun
