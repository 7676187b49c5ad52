// What a drill leaves in its folder for people and programs: drill.json, drill.md and cases.csv are
// made from the records alone; run.json says how they came about.
//
//   TWINRUN_RETURN_IF_ERROR(write_results("out", drill.records, "twinrun_dev drill"));
#pragma once

#include "harness/drill/matrix.h"

namespace twinrun::drill {

// `records`: of the whole drill, in the order of the plan. `command`: as typed.
Result<DrillSummary> write_results(const std::string& folder,
                                   const std::vector<CaseRecord>& records,
                                   const std::string& command);

}  // namespace twinrun::drill
