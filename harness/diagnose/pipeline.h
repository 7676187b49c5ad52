// The whole sentence in one function: scenario -> program -> checkpoint -> engines -> runs -> diff -> verdict -> report.
//
//   auto d = diagnose(scenario, {.subject = "tpu", .directory = "out", .threads = 2}, &progress, &stop);
//   d->report.verdict;  exit_code(d->report.verdict);
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends/faults/faults.h"
#include "harness/experiment/experiment.h"
#include "harness/host/progress.h"
#include "reports/report.h"

namespace twinrun {

struct Evidence;

struct DiagnoseOptions {
  std::string baseline = "cpu", subject = "tpu";
  std::string directory;  // report.json, report.md, init.h5, runs/*.h5
  bool quick = false;
  bool cure = false;  // run the cure of the causes that the scenario's sharding has
  int threads = 1;
  std::vector<FaultSpec> faults;  // of the subject
  // A subject that is no engine by name (a drill's): instead of `subject` and `faults`.
  std::function<Result<std::unique_ptr<Backend>>(const BackendOptions&)> make_subject;
  std::string command;  // as typed, for the report
  std::string cache;    // folder of reference runs kept for later; "": none
  bool fresh = false;   // compute them again
  // A hand in the evidence after every stage: for tests that a broken diagnosis is noticed. No command line reaches it.
  std::function<void(Evidence&)> sabotage;
};

struct Diagnosis {
  Report report;
  bool interrupted = false;
};

Result<Diagnosis> diagnose(const Scenario& scenario, const DiagnoseOptions& options,
                           Progress* progress, const StopFlag* stop);
// Of an experiment that is there: an imported one (harness/experiment/imported.h).
Result<Diagnosis> diagnose(Experiment experiment, const DiagnoseOptions& options,
                           Progress* progress, const StopFlag* stop);

// What diagnose would do: runs, samples, FLOPs, disk; seconds from one measured step of R.
struct PlanRow {
  std::string name, engine, settings;
  int64_t steps = 0;
  double flops = 0;
  double seconds = 0;
  double megabytes = 0;
};
Result<std::vector<PlanRow>> plan(const Experiment& experiment, const DiagnoseOptions& options);

}  // namespace twinrun
