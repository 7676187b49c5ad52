// The stages on the reference engine: snapshot, runs R, R', R1 and S, the control of the emulator,
// and the meaning of the sharded program (in binary64, and proven over a field).
#include "harness/diagnose/stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/registry.h"
#include "harness/diagnose/corners.h"
#include "harness/experiment/engines.h"
#include "harness/run/one_step.h"
#include "harness/sharding/field_proof.h"
#include "harness/tensors/distance.h"

namespace twinrun {
namespace {

// Runs the first `steps` steps from the initial state. Returns the state after them; `last` gets
// the outputs of the last one.
Result<States> first_steps(Stage& stage, const Program& program, Backend& backend, int64_t steps,
                           StepOutputs& last) {
  TWINRUN_ASSIGN(const auto engine, backend.prepare(program));
  return run_steps(stage.experiment, *engine, initial_states(stage.experiment, program), steps,
                   [&](StepOutputs& outputs) { last = std::move(outputs); });
}

// Relative distance of `a`'s gradient from `b`'s, in one step from the initial state. An imported
// step shows no gradient, so its update is compared instead.
Result<double> gradient_drift(Stage& stage, const Program& program, Backend& a, Backend& b) {
  StepOutputs outputs[2];
  TWINRUN_ASSIGN(const States after_a, first_steps(stage, program, a, 1, outputs[0]));
  TWINRUN_ASSIGN(const States after_b, first_steps(stage, program, b, 1, outputs[1]));
  RelativeDistance distance;
  if (stage.experiment.imported) {
    const States before = initial_states(stage.experiment, program);
    for (size_t i = 0; i < program.state.size(); ++i) {
      if (program.state[i].role != StateRole::kParameter) continue;
      distance.add(change(before[0].vars[i], after_a[0].vars[i]),
                   change(before[0].vars[i], after_b[0].vars[i]));
    }
    return distance.value();
  }
  for (size_t o = 0; o < program.outputs.size(); ++o) {
    if (program.outputs[o].name.ends_with(".grad"))
      distance.add(outputs[0][0][o], outputs[1][0][o]);
  }
  return distance.value();
}

// What the formula of the update alone changes: relative distance of the weights after one update
// of the whole batch on the reference engine, by the TPU's formula from those by the CPU's.
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

Status write_snapshot(Stage& stage) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(stage.options.directory) / "runs",
                                      error);
  if (error)
    return Error{"cannot create the folder: " + error.message(), stage.options.directory,
                 "choose another with -o"};
  const Program program = stage.experiment.whole();
  Checkpoint c = to_checkpoint(program, initial_states(stage.experiment, program),
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

  // R' runs with another thread count and memory filled with NaN patterns, and must give the same
  // bits.
  TWINRUN_ASSIGN(const auto poisoned, baseline(stage, other, true));
  RunOptions again;
  again.evaluate = true;
  stage.kept_weights.emplace(e.whole(), e.scenario.train.steps);
  again.observer = &*stage.kept_weights;
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
      {fmt::format("emulator at precision f32 = {}, first steps", stage.sharded() ? "S" : "R"),
       !parts, true,
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

Status compare_meaning(Stage& stage) {
  if (!stage.sharded() || !stage.runs.contains("T")) return Ok{};
  const Experiment& e = stage.experiment;
  const Program whole = e.whole();
  std::vector<ProbeState> states;
  states.emplace_back(0, to_checkpoint(whole, initial_states(e, whole), e.scenario, 0));
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

Status prove_sharding(Stage& stage) {
  if (!stage.sharded() || !stage.runs.contains("T")) return Ok{};
  const Experiment& e = stage.experiment;
  const std::vector<ShardingCause>& causes = stage.evidence.meaning.causes;
  std::vector<std::string> names = {"sharded"};
  std::vector<Sharding> shardings = {e.sharding};
  const Sharding own = with_own_statistics(e);
  for (const ShardingCause& cause : causes) {
    names.push_back("without " + cause.name);
    shardings.push_back(restore(e, own, cause.name));
  }
  if (causes.size() > 1) {
    names.emplace_back("without any cause");
    shardings.push_back(faithful(e));
  }
  if (stage.progress != nullptr)
    stage.progress->begin("proof: both programs over a prime field", 1);
  TWINRUN_ASSIGN(const auto proofs, prove_meaning(e, shardings, stage.options.threads));
  for (size_t i = 0; i < proofs.size(); ++i)
    stage.evidence.proofs.push_back(row_of(names[i], proofs[i]));
  if (stage.progress != nullptr) {
    const FieldProof& sharded = proofs.front();
    stage.progress->end(!sharded.unproven.empty()  ? "not proven"
                        : sharded.equal()          ? "the same function"
                        : sharded.parts_at.empty() ? "other functions"
                                                   : "they part at " + sharded.parts_at);
  }
  return Ok{};
}

}  // namespace twinrun
