// Reduces a scenario to a smaller one whose diagnosis has the same finding: fewer steps, cores,
// samples, layers, units, and a data file of its own. Greedy: a change that keeps the finding
// stays, and all changes are tried again until none keeps it (1-minimal in these changes). Used by
// bundle.h.
//
//   auto small = reduce(scenario, options, report.findings[0], {.folder = "work"}, nullptr, &stop);
//   small->scenario;  small->report;  small->log;       // "train.batch: 128 -> 8"
#pragma once

#include <string>
#include <vector>

#include "harness/diagnose/pipeline.h"

namespace twinrun {

struct ReduceOptions {
  std::string folder;   // for its data and for the diagnoses that it runs; must exist
  bool noise = false;   // replace the data by noise (own_data.h)
  int max_tried = 200;  // limit of diagnoses
};

struct Reduced {
  Scenario scenario;        // its data.dir is `folder`, or there lies its program
  DiagnoseOptions options;  // of that diagnosis: with `quick` for an engine bug
  Report report;            // of the last diagnosis with the same finding
  std::vector<std::string> log;
  int tried = 0;
  bool interrupted = false;
};

// Whether class, cause, op, phase, core and level are the same. Step and numbers may differ.
bool same_failure(const Finding& a, const Finding& b);

// Error: the finding does not show again, or not without the data.
Result<Reduced> reduce(const Scenario& scenario, const DiagnoseOptions& options,
                       const Finding& found, const ReduceOptions& how, Progress* progress,
                       const StopFlag* stop);

}  // namespace twinrun
