// What to try before a bug is filed, each point ticked if this diagnosis did it: the report's
// `checklist`. The points are those of the Cloud TPU guide "Troubleshooting TensorFlow - TPU",
// sections "Debugging drops in model accuracy" and "Trouble connecting to the TPU server"
// (docs.cloud.google.com/tpu/docs/troubleshooting/trouble-tf). It is filled after the verdict and
// decides nothing.
//
//   report.checklist = checklist(diagnosis, report);   // {{"one core", true, "run E1 ..", ""}}
#pragma once

#include <vector>

#include "harness/diagnose/stages.h"

namespace twinrun {

// `report` must have its runs, controls, switches and trajectories already.
std::vector<ChecklistRow> checklist(const DiagnosisState& diagnosis, const Report& report);

}  // namespace twinrun
