// The stages on the reference engine: snapshot, runs R, R', R1 and S, the control of the emulator,
// and the meaning of the sharded program (in binary64, and proven over a field).
#include "harness/diagnose/stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "backends/registry.h"
#include "harness/diagnose/runs.h"
#include "harness/experiment/engines.h"
#include "harness/run/one_step.h"
#include "harness/sharding/field_proof.h"
#include "harness/tensors/distance.h"
#include "program/base/os_error.h"

namespace twinrun {
namespace {

// Runs the first `steps` steps from the initial state. Returns the state after them; `last` gets
// the outputs of the last one.
Result<States> first_steps(DiagnosisState& diagnosis, const Program& program, Backend& backend,
                           int64_t steps, StepOutputs& last) {
  TWINRUN_ASSIGN(const auto engine, backend.prepare(program));
  return run_steps(diagnosis.experiment, *engine, initial_states(diagnosis.experiment, program),
                   steps, [&](StepOutputs& outputs) { last = std::move(outputs); });
}

// Relative distance of `a`'s gradient from `b`'s, in one step from the initial state. An imported
// step shows no gradient, so its update is compared instead.
Result<double> gradient_drift(DiagnosisState& diagnosis, const Program& program, Backend& a,
                              Backend& b) {
  StepOutputs outputs[2];
  TWINRUN_ASSIGN(const States after_a, first_steps(diagnosis, program, a, 1, outputs[0]));
  TWINRUN_ASSIGN(const States after_b, first_steps(diagnosis, program, b, 1, outputs[1]));
  RelativeDistance distance;
  if (diagnosis.experiment.imported) {
    const States before = initial_states(diagnosis.experiment, program);
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
Result<double> algebra_drift(DiagnosisState& diagnosis, Backend& cpu) {
  const Experiment& e = diagnosis.experiment;
  const Program ours = e.whole(), theirs = e.whole(Experiment::Stack::kTpu);
  StepOutputs outputs;
  const int64_t steps = e.scenario.train.accumulate;
  TWINRUN_ASSIGN(const States a, first_steps(diagnosis, theirs, cpu, steps, outputs));
  TWINRUN_ASSIGN(const States b, first_steps(diagnosis, ours, cpu, steps, outputs));
  return relative_distance(ours, a, b);
}

}  // namespace

Status write_snapshot(DiagnosisState& diagnosis) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(diagnosis.options.directory) / "runs",
                                      error);
  if (error)
    return Error{"cannot create the folder: " + error.message(), diagnosis.options.directory,
                 "choose another with -o", kind_of_failure(error.value())};
  const Program program = diagnosis.experiment.whole();
  Checkpoint c = to_checkpoint(program, initial_states(diagnosis.experiment, program),
                               diagnosis.experiment.scenario, 0);
  c.scenario = resolved_toml(diagnosis.experiment.scenario);
  c.scenario_digest = scenario_digest(diagnosis.experiment.scenario).hex();
  return write_checkpoint((std::filesystem::path(diagnosis.options.directory) / "init.h5").string(),
                          c);
}

Status run_references(DiagnosisState& diagnosis) {
  const Experiment& e = diagnosis.experiment;
  const int threads = diagnosis.options.threads, other = threads + 1;
  TWINRUN_ASSIGN(const auto cpu, baseline(diagnosis, threads));
  TWINRUN_RETURN_IF_ERROR(reference(diagnosis, "R", e, e.whole(), *cpu, {}));
  if (diagnosis.stopped()) return Ok{};
  const RunResult& r = diagnosis.runs["R"];

  // R' runs with another thread count and memory filled with NaN patterns, and must give the same
  // bits.
  TWINRUN_ASSIGN(const auto poisoned, baseline(diagnosis, other, true));
  RunOptions again;
  again.evaluate = true;
  diagnosis.kept_weights.emplace(e.whole(), e.scenario.train.steps);
  again.observer = &*diagnosis.kept_weights;
  TWINRUN_RETURN_IF_ERROR(train_run(diagnosis, "R2", e, e.whole(), *poisoned, again));
  diagnosis.evidence.reference_diverges_at = first_difference(r.file, diagnosis.runs["R2"].file);
  diagnosis.evidence.controls.push_back(
      {fmt::format("the reference again (other thread count: {} and {}; poisoned memory)", threads,
                   other),
       !diagnosis.evidence.reference_diverges_at, true,
       diagnosis.evidence.reference_diverges_at
           ? fmt::format("states diverge after step {}", *diagnosis.evidence.reference_diverges_at)
           : fmt::format("{} state digests equal", r.file.state_digests.size()),
       "", ControlKind::kReferenceRepeats});
  if (r.first_non_finite) {
    diagnosis.evidence.reference_non_finite = r.first_non_finite;
    diagnosis.evidence.reference_non_finite_run = "R";
  }
  if (diagnosis.stopped() || diagnosis.evidence.reference_diverges_at || r.first_non_finite)
    return Ok{};

  if (diagnosis.sharded()) {
    TWINRUN_RETURN_IF_ERROR(reference(diagnosis, "R1", e, e.per_core(), *cpu, {}));
    if (diagnosis.stopped()) return Ok{};
  }
  if (diagnosis.own_s()) {
    TWINRUN_RETURN_IF_ERROR(reference(diagnosis, "S", e, diagnosis.subject_program(e), *cpu, {}));
    if (diagnosis.runs["S"].first_non_finite) {
      diagnosis.evidence.reference_non_finite = diagnosis.runs["S"].first_non_finite;
      diagnosis.evidence.reference_non_finite_run = "S";
    }
  } else {
    diagnosis.programs["S"] = diagnosis.programs["R"];
    diagnosis.runs["S"] = diagnosis.runs["R"];
  }
  if (e.two_algebras()) {
    TWINRUN_ASSIGN(diagnosis.evidence.algebra_drift, algebra_drift(diagnosis, *cpu));
  }
  return Ok{};
}

Status check_emulator(DiagnosisState& diagnosis) {
  if (diagnosis.options.subject != "tpu" || diagnosis.options.baseline != "cpu" ||
      !diagnosis.runs.contains("T"))
    return Ok{};
  const Experiment& e = diagnosis.experiment;
  BackendOptions o = split_options(diagnosis, e.scenario, diagnosis.options.threads);
  o.tpu.precision = DotPrecision::kF32;
  TWINRUN_ASSIGN(const auto degenerate, make_backend("tpu", o));
  RunOptions run;
  run.steps = std::min<int64_t>(3, e.scenario.train.steps);
  run.evaluate = false;
  run.threads = diagnosis.options.threads;
  TWINRUN_ASSIGN(const RunResult f32, train(e, diagnosis.programs["S"], *degenerate, run));
  const auto parts = first_difference(f32.file, diagnosis.runs["S"].file);
  diagnosis.evidence.emulator_fails = parts.has_value();
  diagnosis.evidence.controls.push_back(
      {fmt::format("emulator at precision f32 = {}, first steps",
                   diagnosis.sharded() ? "the sharded reference" : "the reference"),
       !parts, true,
       parts ? fmt::format("states diverge after step {}", *parts)
             : fmt::format("{} state digests equal", f32.file.state_digests.size()),
       "", ControlKind::kEmulator});
  TWINRUN_ASSIGN(const auto cpu, baseline(diagnosis, diagnosis.options.threads));
  TWINRUN_ASSIGN(const auto declared, subject(diagnosis));
  o.tpu.precision = DotPrecision::kBf16x6;
  TWINRUN_ASSIGN(const auto highest, make_backend("tpu", o));
  TWINRUN_ASSIGN(diagnosis.evidence.default_drift,
                 gradient_drift(diagnosis, diagnosis.programs["S"], *declared, *cpu));
  TWINRUN_ASSIGN(diagnosis.evidence.highest_drift,
                 gradient_drift(diagnosis, diagnosis.programs["S"], *highest, *cpu));
  return Ok{};
}

Status compare_meaning(DiagnosisState& diagnosis) {
  if (!diagnosis.sharded() || !diagnosis.runs.contains("T")) return Ok{};
  const Experiment& e = diagnosis.experiment;
  const Program whole = e.whole();
  std::vector<ProbeState> states;
  states.emplace_back(0, to_checkpoint(whole, initial_states(e, whole), e.scenario, 0));
  const RunResult& r = diagnosis.runs["R"];
  states.emplace_back(e.scenario.train.steps - 1,
                      to_checkpoint(whole, r.states, e.scenario, e.scenario.train.steps));
  if (diagnosis.progress != nullptr)
    diagnosis.progress->begin("what sharding means, in binary64", 1);
  TWINRUN_ASSIGN(diagnosis.evidence.meaning, probe_meaning(e, states, diagnosis.options.threads));
  if (diagnosis.progress != nullptr) {
    diagnosis.progress->end(fmt::format("it moves the gradient of one step by {:.3g}",
                                        diagnosis.evidence.meaning.drift));
  }
  return Ok{};
}

Status compare_user_sharding(DiagnosisState& diagnosis) {
  const Experiment& e = diagnosis.experiment;
  if (!e.imported || e.imported->step.sharding.cores == 1 || !diagnosis.runs.contains("T"))
    return Ok{};
  if (diagnosis.progress != nullptr)
    diagnosis.progress->begin("what the user's sharding means, in binary64", 1);
  TWINRUN_ASSIGN(diagnosis.evidence.user_sharding,
                 judge_user_sharding(e, diagnosis.options.threads));
  if (diagnosis.progress != nullptr) {
    const UserSharding& u = *diagnosis.evidence.user_sharding;
    diagnosis.progress->end(!u.other.empty()   ? "not what the step on one device does"
                            : !u.apart.empty() ? "copies of state differ"
                            : u.compared       ? "the step on one device"
                                               : "copies of state stay equal");
  }
  return Ok{};
}

Status prove_sharding(DiagnosisState& diagnosis) {
  if (!diagnosis.sharded() || !diagnosis.runs.contains("T")) return Ok{};
  const Experiment& e = diagnosis.experiment;
  const std::vector<ShardingCause>& causes = diagnosis.evidence.meaning.causes;
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
  if (diagnosis.progress != nullptr)
    diagnosis.progress->begin("proof over a prime field that both mean the same", 1);
  TWINRUN_ASSIGN(const auto proofs, prove_meaning(e, shardings, diagnosis.options.threads));
  for (size_t i = 0; i < proofs.size(); ++i)
    diagnosis.evidence.proofs.push_back(row_of(names[i], proofs[i]));
  if (diagnosis.progress != nullptr) {
    const FieldProof& sharded = proofs.front();
    diagnosis.progress->end(!sharded.unproven.empty() ? "not proven"
                            : sharded.equal()         ? "the same function"
                            : sharded.diverges_at.empty()
                                ? "other functions"
                                : "they diverge at " + sharded.diverges_at);
  }
  return Ok{};
}

}  // namespace twinrun
