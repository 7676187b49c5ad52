// The stages of the diagnosis, in the order in which pipeline.cc calls them. Each fills its part of
// DiagnosisState.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/core/communicator.h"
#include "backends/faults/faulty_backend.h"
#include "harness/diagnose/classify.h"
#include "harness/diagnose/pipeline.h"
#include "harness/envelope/screen_steps.h"
#include "harness/run/weight_drift.h"

namespace twinrun {

// Held-out loss and accuracy after the last step of R, S and T, per seed.
struct PairedSeeds {
  std::vector<Evaluation> r, s, t;
};

struct DiagnosisState {
  const DiagnoseOptions& options;
  Progress* progress;
  const StopFlag* stop;
  Experiment experiment;
  mutable ThreadPool pool;  // the engines that run here and those who judge them take turns on it
  std::map<std::string, RunResult> runs;  // R R2 R1 E1 S T
  std::map<std::string, Program> programs;
  PairedSeeds seeds;
  std::vector<CureRow> cures;
  Evidence evidence;
  std::vector<EngineProbe> probes;
  std::optional<Lockstep> probe_t, probe_e1, probe_gap;
  // The experiment uses the formulas that the subject declared in its hello message.
  bool conventions_declared = false;
  std::string running;                       // the run that was started last
  std::vector<ProbedState> subject_states;   // T's own, at a few steps
  std::vector<ProbedState> one_core_states;  // E1's own, at a few steps
  ScreenSummary screened;                    // of T, if it shows tensors only
  std::optional<WeightKeeper> kept_weights;  // of R2
  WeightDrift weight_drift;                  // of T
  LossBand loss_band;                        // of R over the seeds
  std::vector<FaultSpec> faults;  // injected into the subject: the options' and the scenario's
  // Counts the subject's runs, by which intermittent faults differ, and records which faults
  // changed bits. Only the report reads it, never the code that judges.
  std::shared_ptr<FaultLog> fault_log = std::make_shared<FaultLog>();

  DiagnosisState(const DiagnoseOptions& o, Progress* p, const StopFlag* s, Experiment e)
      : options(o), progress(p), stop(s), experiment(std::move(e)), pool(o.threads) {}
  // A signal may reach one rank earlier than another: all ask this at the same places.
  bool stopped() const { return any_rank(options.ranks, stop != nullptr && stop->load()); }
  bool sharded() const { return experiment.sharding.cores > 1; }
  // S has another program than R, so it is a run of its own.
  bool own_s() const { return sharded() || experiment.two_algebras(); }
  // The program of S and T.
  Program subject_program(const Experiment& e) const {
    return sharded() ? e.sharded(e.sharding) : e.whole(Experiment::Stack::kTpu);
  }
};

// Uses the subject's declared formulas if the scenario names none (conventions = "auto").
Status adopt_conventions(DiagnosisState& diagnosis);
// Reports errors that are known before anything is run or written.
Status preflight(DiagnosisState& diagnosis);
Status write_snapshot(DiagnosisState& diagnosis);  // init.h5
Status run_references(DiagnosisState& diagnosis);  // R, R', R1 and S on the reference engine
Status run_subject(DiagnosisState& diagnosis);     // E1 and T under lockstep; T'
// Checks that the emulator at precision f32 has the reference's bits.
Status check_emulator(DiagnosisState& diagnosis);
// Finds the first wrong step, where unprobed steps precede the first violation, and reruns it.
Status localise(DiagnosisState& diagnosis);
// Identifies the program that the subject ran, from its tensors or from what its ops read.
Status identify_subject(DiagnosisState& diagnosis);
// What the sharding of an imported step means, in binary64.
Status compare_user_sharding(DiagnosisState& diagnosis);
Status compare_meaning(DiagnosisState& diagnosis);  // ablations of the sharding causes, in binary64
// Proves that the sharded program is the same function, or finds where the programs diverge.
Status prove_sharding(DiagnosisState& diagnosis);
Status compare_trajectories(DiagnosisState& diagnosis);  // paired seeds
// Trains again with the causes undone and measures what is left of the drift.
Status apply_cures(DiagnosisState& diagnosis);
Report make_report(DiagnosisState& diagnosis, const Judgement& judgement);
// `report` is complete but for these.
Answers answers_of(const DiagnosisState& diagnosis, const Report& report);

}  // namespace twinrun
