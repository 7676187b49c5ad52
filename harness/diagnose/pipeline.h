// The whole diagnosis in one function: scenario -> program -> checkpoint -> engines -> runs ->
// comparison -> verdict -> report.
//
//   auto d = diagnose(scenario, {.subject = "tpu", .directory = "out"}, &progress, &stop);
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
  bool cure = false;  // train again with the causes of the scenario's sharding undone
  int threads = 1;
  // The ranks that diagnose together. All walk the same stages and decide alike, because every
  // engine gives each of them the values of all cores; they differ in `directory` only.
  Communicator* ranks = nullptr;
  std::vector<FaultSpec> faults;  // to inject into the subject
  // Makes a subject that has no engine name (a drill's); used instead of `subject` and `faults`.
  std::function<Result<std::unique_ptr<Backend>>(const BackendOptions&)> make_subject;
  std::string command;             // as typed, for the report
  std::vector<std::string> notes;  // of the caller, for the report
  std::string cache;   // folder in which reference runs are kept for later diagnoses; "": none
  bool fresh = false;  // compute reference runs again instead of reading them from the cache
  // Changes the evidence after every stage. For tests that check that a broken diagnosis is
  // noticed; no command-line option sets it.
  std::function<void(Evidence&)> sabotage;
};

struct Diagnosis {
  Report report;
  bool interrupted = false;
};

Result<Diagnosis> diagnose(const Scenario& scenario, const DiagnoseOptions& options,
                           Progress* progress, const StopFlag* stop);
// The same for an experiment that exists already, such as an imported one
// (harness/experiment/imported.h).
Result<Diagnosis> diagnose(Experiment experiment, const DiagnoseOptions& options,
                           Progress* progress, const StopFlag* stop);

// One run that diagnose would make: its steps, FLOPs, seconds (from up to three measured steps of
// R) and megabytes on disk.
struct PlanRow {
  std::string name, engine, settings;
  int64_t steps = 0;
  double flops = 0;
  double seconds = 0;
  double megabytes = 0;
};
Result<std::vector<PlanRow>> plan(const Experiment& experiment, const DiagnoseOptions& options);

}  // namespace twinrun
