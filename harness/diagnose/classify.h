// From evidence to verdict: the table of docs/diagnosis.md. Knows no engine beyond its declared capabilities.
//
//   Judgement j = classify(evidence);       // class, headline, confidence, findings
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/effect/effect.h"
#include "harness/identify/judge_steps.h"
#include "harness/identify/matching.h"
#include "harness/lockstep/lockstep.h"
#include "harness/run/run.h"
#include "harness/sharding/switches.h"
#include "reports/report.h"

namespace twinrun {

struct Evidence {
  Capabilities subject;
  int cores = 1;
  bool quick = false;
  bool held_out = true;           // there are samples and seeds to ask whether drift matters
  std::vector<Control> controls;  // R = R', T = T', ...
  std::optional<int64_t> reference_parts;  // first step where R and R' differ
  std::string reference_parts_op;
  std::optional<Birth> reference_birth;  // R or S ended in NaN or Inf
  std::string reference_birth_run;
  std::optional<int64_t> subject_parts;  // first step where T and T' differ
  std::optional<Error>
      engine_failure;              // an engine of another process ended, hung or answered nonsense
  std::string engine_failure_run;  // the run that was begun last before it
  bool emulator_fails = false;     // at precision f32 it is not S, bit for bit
  std::optional<Birth> subject_birth;  // T ended so, the references did not
  std::vector<Violation> violations;   // of T and E1, in order of execution
  std::string violations_run;          // "T" or "E1"
  char level =
      'A';  // of the evidence: A op trace and declared contract, B trace only, C tensors only
  std::optional<RunSpread> spread;       // bits differ from run to run, every op inside its bound
  std::vector<ReplicaParting> partings;  // state variables whose replicas part
  bool other_program =
      false;  // T's ops, or what they were fed, are not those of the program asked for
  std::optional<MatchResult> match;  // ... or its ops were not shown
  // Of an engine that shows tensors only, beside the match.
  StepCoverage step_coverage;
  int64_t judged_since_outside = 0;  // steps, from the first that is outside on
  std::optional<OtherStart> other_start;
  std::optional<bool> inside_again;  // the first step outside, resumed from the reported state
  std::optional<LayerFault> layer_fault;
  std::string layers_error;  // what came in its place
  std::optional<HiddenState> hidden_state;
  std::optional<ReplicaSplit> replica_split;
  std::vector<ShardingCause>
      known_causes;       // what each cause of an explanation means and what cures it
  bool localised = true;  // the first violation follows a clean probed step directly
  MeaningResult meaning;
  std::vector<ProofRow> proofs;  // of the sharded program, as it is and with its causes undone
  std::vector<TrajectoryRow> trajectories;  // of each pair by each metric
  std::optional<Learning> learning;         // of R
  std::vector<EnsembleRow> ensembles;
  bool identical = false;  // T equals R bit for bit, and E1 equals R1
  bool t_equals_s = false;
  double engine_drift = 0;    // relative distance of weights, T against S, at the end
  double highest_drift = -1;  // of one step's gradient at precision highest; < 0: not run
  double default_drift = -1;  // and at the declared one
  double algebra_drift =
      -1;  // of the weights after one update, by the subject's formula of it; < 0: it is R's
  std::string command;  // that shows it again
};

struct Judgement {
  VerdictClass verdict = VerdictClass::kInconclusive;
  Effect effect = Effect::kUndecided;
  std::string effect_metric, effect_text;
  std::string headline, confidence;
  std::vector<Finding> findings;
  std::vector<std::string> next_steps, notes;
};

Judgement classify(const Evidence& evidence);

}  // namespace twinrun
