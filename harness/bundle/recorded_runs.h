// Holds what a report says of its runs against the run files beside it, before both are packed.
//
//   TWINRUN_RETURN_IF_ERROR(check_recorded_runs(report, "results", notes));
#pragma once

#include <string>
#include <vector>

#include "program/base/result.h"
#include "reports/report.h"

namespace twinrun {

// Compares digest, number of steps and losses of every run with FOLDER/runs/NAME.h5. Adds a note
// for each completed run whose file is missing. Errors: a file that cannot be read, or that is of
// another run than the report.
Status check_recorded_runs(const Report& report, const std::string& folder,
                           std::vector<std::string>& notes);

}  // namespace twinrun
