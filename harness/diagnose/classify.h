// From evidence to verdict, by the table of docs/method/diagnosis.md (verdict_rows.h). It stands
// between the stages (stages.h) and the report. Of an engine it knows only the declared
// capabilities.
//
//   Judgement j = classify(evidence);       // class, headline, confidence, findings
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/effect/effect.h"
#include "harness/identify/identify.h"
#include "harness/identify/judge_steps.h"
#include "harness/lockstep/lockstep.h"
#include "harness/run/run.h"
#include "harness/sharding/ablation.h"
#include "harness/sharding/user_sharding.h"
#include "reports/report.h"

namespace twinrun {

struct Evidence {
  Capabilities subject;
  int cores = 1;
  bool quick = false;
  // Held-out samples exist, so whether drift matters can be tested (for an imported step, only
  // where held-out batches were given).
  bool held_out = true;
  std::vector<Control> controls;                 // R = R', T = T', ...
  std::optional<int64_t> reference_diverges_at;  // first step where R and R' differ
  std::string reference_diverges_op;
  std::optional<FirstNonFinite> reference_non_finite;  // set if R or S ended in NaN or Inf
  std::string reference_non_finite_run;
  std::optional<int64_t> subject_diverges_at;  // first step where T and T' differ
  // An engine of another process exited, hung or returned an invalid answer.
  std::optional<Error> engine_failure;
  std::string engine_failure_run;  // the last run that was started before the failure
  bool emulator_fails = false;     // at precision f32 the emulator does not have S's bits
  // Set if T ended in NaN or Inf and the reference runs did not.
  std::optional<FirstNonFinite> subject_non_finite;
  std::vector<Violation> violations;  // of the run below, in order of execution
  std::string violations_run;         // "T" or "E1"
  // Level of the evidence: A op trace and declared arithmetic, B op trace only, C tensors only.
  char level = 'A';
  std::optional<RunSpread> spread;  // bits differ from run to run, every op inside its bound
  std::vector<ReplicaDivergence> divergences;  // state variables whose replicas diverge
  // Ops of T that were replayed, and none of whose elements has a finite bound.
  std::vector<std::string> unbounded;
  // T executed other ops than the requested program has, or read other inputs than it was fed.
  bool other_program = false;
  // Which program T ran. Set if `other_program`, or if T's ops were not shown.
  std::optional<Identification> match;
  // T's own, where `match` is that of run E1: causes of sharding explain T, and E1, in which they
  // change nothing, is not what was asked for either.
  std::optional<Identification> all_cores;
  std::optional<Identification> one_core;  // E1's, where it is outside and nothing explains that
  // The following members are filled only for a subject that shows tensors only, beside `match`.
  StepCoverage step_coverage;
  int64_t judged_since_outside = 0;  // judged steps, from the first one outside on
  std::optional<OtherStart> other_start;
  // Whether the first step outside is inside when it is run again from the state that was reported.
  std::optional<bool> inside_again;
  std::optional<LayerFault> layer_fault;
  std::string layers_error;  // the engine's error when it was asked for its layers' outputs
  std::optional<HiddenState> hidden_state;
  std::optional<ReplicaSplit> replica_split;
  // Meaning and cure of the sharding causes in the explanations of `match`.
  std::vector<ShardingCause> known_causes;
  // The step before the first violation was probed and is clean, or there is no such step.
  bool localised = true;
  MeaningResult meaning;
  std::optional<UserSharding> user_sharding;  // of an imported step on several cores
  std::vector<ProofRow> proofs;  // of the sharded program, as it is and with its causes undone
  std::vector<TrajectoryRow> trajectories;  // of each pair by each metric
  std::optional<Learning> learning;         // of R
  std::vector<EnsembleRow> ensembles;
  bool identical = false;  // T equals R bit for bit, and E1 equals R1
  bool t_equals_s = false;
  double engine_drift = 0;  // relative distance of T's weights from S's after the last step
  // Relative distance of one step's gradient (imported step: update) from the reference's, at
  // precision "highest" and at the declared one; < 0: not run.
  double highest_drift = -1;
  double default_drift = -1;
  // Relative distance of the weights after one update by the TPU stack's formula from those by the
  // CPU's; < 0: both use the same formula.
  double algebra_drift = -1;
  std::string command;  // reproduces the diagnosis
};

struct Judgement {
  VerdictClass verdict = VerdictClass::kInconclusive;
  Effect effect = Effect::kUndecided;
  std::string effect_metric, effect_text;
  std::string row;  // of the table of verdicts (verdict_rows.h), the one that decided
  std::string headline, confidence;
  std::vector<Finding> findings;
  std::vector<std::string> next_steps, remarks, notes;
  bool to_file = false;  // an engine bug that its makers should hear of, unless it was injected
};

Judgement classify(const Evidence& evidence);

// The table of verdicts, as docs/method/diagnosis.md has it: order, condition, class and exit code.
std::string verdict_table_markdown();

}  // namespace twinrun
