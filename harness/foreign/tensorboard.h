// Writes a diagnosis for TensorBoard: a folder per run, with an event file of its scalars.
//
//   TWINRUN_ASSIGN(auto files, tensorboard_files(report, "twinrun-results/digits_cnn-fdd1c987"));
//   files[0].name;                                  // "R/events.out.tfevents.0.twinrun"
#pragma once

#include <string>
#include <vector>

#include "program/base/result.h"
#include "reports/csv.h"

namespace twinrun {

// For each run of the report, the curves of FOLDER/runs/NAME.h5 (curves_of in curves.h). Where that
// file does not exist, the report's own data: loss per step, held-out loss and accuracy after the
// last step. Errors: a run file that cannot be read; no runs; a run name that cannot be a folder
// name.
Result<std::vector<ReportFile>> tensorboard_files(const Report& report, const std::string& folder);

}  // namespace twinrun
