// Calls the stages of the diagnosis in order, classifies the evidence and writes the report.
#include "harness/diagnose/pipeline.h"

#include "harness/diagnose/stages.h"
#include "harness/diagnose/write_report.h"

namespace twinrun {

Result<Diagnosis> diagnose(const Scenario& scenario, const DiagnoseOptions& options,
                           Progress* progress, const StopFlag* stop) {
  TWINRUN_ASSIGN(Experiment experiment, make_experiment(scenario));
  return diagnose(std::move(experiment), options, progress, stop);
}

Result<Diagnosis> diagnose(Experiment experiment, const DiagnoseOptions& options,
                           Progress* progress, const StopFlag* stop) {
  DiagnosisState diagnosis(options, progress, stop, std::move(experiment));

  for (const auto run : {adopt_conventions, preflight, write_snapshot, run_references, run_subject,
                         check_emulator, localise, identify_subject, compare_user_sharding,
                         compare_meaning, prove_sharding, compare_trajectories, apply_cures}) {
    if (const Status done = run(diagnosis); !done) {
      // Before the reference has run there is nothing to report on.
      if (!done.error().of_foreign_engine() || !diagnosis.runs.contains("R")) return done.error();
      diagnosis.evidence.engine_failure = done.error();
      diagnosis.evidence.engine_failure_run = diagnosis.running;
      break;
    }
    if (diagnosis.stopped()) return Diagnosis{{}, true};
    if (options.sabotage) options.sabotage(diagnosis.evidence);
  }
  Diagnosis result{make_report(diagnosis, classify(diagnosis.evidence)), false};
  TWINRUN_RETURN_IF_ERROR(write_report(diagnosis.options.directory, result.report));
  return result;
}

}  // namespace twinrun
