// The stages of pipeline.cc, in the order of their use; each fills its part of Stage.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/faults/faulty_backend.h"
#include "harness/diagnose/classify.h"
#include "harness/diagnose/pipeline.h"
#include "harness/envelope/screen_steps.h"
#include "harness/run/weight_drift.h"

namespace twinrun {

// What the runs of each seed came to on held-out samples.
struct PairedSeeds {
  std::vector<Evaluation> r, s, t;
};

struct Stage {
  const DiagnoseOptions& options;
  Progress* progress;
  const StopFlag* stop;
  Experiment experiment;
  ThreadPool pool;
  std::map<std::string, RunResult> runs;  // R R2 R1 E1 S T
  std::map<std::string, Program> programs;
  PairedSeeds seeds;
  std::vector<CureRow> cures;
  Evidence evidence;
  std::vector<EngineProbe> probes;
  std::optional<Lockstep> probe_t, probe_e1, probe_gap;
  bool conventions_declared = false;  // the experiment's formulas are the subject's, by its hello
  std::string running;                // the run that was begun last
  std::vector<MatchState> subject_states;    // T's own, at a few steps
  ScreenSummary screened;                    // of T, where tensors are all that is shown
  std::optional<WeightKeeper> kept_weights;  // of R2
  WeightDrift weight_drift;                  // of T
  LossBand loss_band;                        // of R over the seeds
  std::vector<FaultSpec> faults;             // of the subject: the options' and the scenario's
  // No judge reads it; it counts the subject's runs, by which intermittent faults differ, and the report tells whether one struck.
  std::shared_ptr<FaultLog> fault_log = std::make_shared<FaultLog>();

  Stage(const DiagnoseOptions& o, Progress* p, const StopFlag* s, Experiment e)
      : options(o), progress(p), stop(s), experiment(std::move(e)), pool(o.threads) {}
  bool stopped() const { return stop != nullptr && stop->load(); }
  bool sharded() const { return experiment.sharding.cores > 1; }
  // S is a run of its own: another program than R's.
  bool own_s() const { return sharded() || experiment.two_algebras(); }
  // What S and T run.
  Program subject_program(const Experiment& e) const {
    return sharded() ? e.sharded(e.sharding) : e.whole(Experiment::Stack::kTpu);
  }
};

Status adopt_conventions(Stage& stage);  // the subject's formulas, where the scenario names none
Status preflight(Stage& stage);       // what can be known to fail before anything is run or written
Status write_snapshot(Stage& stage);  // init.h5
Status run_references(Stage& stage);  // R, R', R1 on the baseline; S
Status run_subject(Stage& stage);     // E1, T under lockstep; T'
Status check_emulator(Stage& stage);  // the degenerate setting equals cpu, bit for bit
Status localise(Stage& stage);        // the first wrong step, where probes left gaps
Status match_program(Stage& stage);   // which program the subject ran, from its tensors
Status compare_meaning(Stage& stage);       // switches
Status prove_sharding(Stage& stage);        // the same function, or where the programs part
Status compare_trajectories(Stage& stage);  // paired seeds
Status apply_cures(Stage& stage);           // what is left of the drift with the causes undone
Report make_report(Stage& stage, const Judgement& judgement);
Status write_results(const Stage& stage, const Report& report);

}  // namespace twinrun
