// A diagnosis for TensorBoard: a folder for each run, in it an event file of its scalars.
//
//   TWINRUN_ASSIGN(auto files, tensorboard_files(report, "twinrun-results/digits_cnn-fdd1c987"));
//   files[0].name;                                  // "R/events.out.tfevents.0.twinrun"
#pragma once

#include <string>
#include <vector>

#include "program/base/result.h"
#include "reports/csv.h"

namespace twinrun {

// From FOLDER/runs/NAME.h5 of each run of the report: curves_of (curves.h). Of a run whose file is not there, what the report holds: the loss
// per step, the held-out loss and accuracy after the last. Errors: a run file that cannot be read; no run at all; a run whose name
// cannot be a folder's.
Result<std::vector<ReportFile>> tensorboard_files(const Report& report, const std::string& folder);

}  // namespace twinrun
