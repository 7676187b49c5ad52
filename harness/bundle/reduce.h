// The smallest scenario whose diagnosis still says the same: fewer steps, cores, samples, layers, units, and data of its own.
// Greedy: a change that keeps the finding stays, and all are tried again until none does (1-minimal in these changes).
//
//   auto small = reduce(scenario, options, report.findings[0], {.folder = "work"}, &progress, &stop);
//   small->scenario;  small->report;  small->log;       // "train.batch: 128 -> 8"
#pragma once

#include <string>
#include <vector>

#include "harness/diagnose/pipeline.h"

namespace twinrun {

struct ReduceOptions {
  std::string folder;    // for its data and for the diagnoses that it runs; must be there
  bool noise = false;    // noise in the place of the data (own_data.h)
  int most_tried = 200;  // diagnoses
};

struct Reduced {
  Scenario scenario;        // its data.dir is `folder`
  DiagnoseOptions options;  // what it takes to see it: quick where that is enough
  Report report;            // of the last diagnosis that said the same
  std::vector<std::string> log;
  int tried = 0;
  bool interrupted = false;
};

// Class, cause, op, phase, core and level are the same; step and numbers may not be.
bool same_failure(const Finding& a, const Finding& b);

// Error: the finding does not show again, or not without the data.
Result<Reduced> reduce(const Scenario& scenario, const DiagnoseOptions& options,
                       const Finding& found, const ReduceOptions& how, Progress* progress,
                       const StopFlag* stop);

}  // namespace twinrun
