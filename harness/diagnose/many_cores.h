// How the effects of sharding grow with the number of cores: the report's `many_cores`, derived from
// the sharded program, with what the runs measured beside it (docs/method/diagnosis.md, "Many
// cores"). It is filled after the verdict and decides nothing.
//
//   report.many_cores = many_cores(diagnosis, report);   // empty for eight cores or fewer
#pragma once

#include "harness/diagnose/stages.h"

namespace twinrun {

// `report` must have its probes already.
ManyCores many_cores(const DiagnosisState& diagnosis, const Report& report);

}  // namespace twinrun
