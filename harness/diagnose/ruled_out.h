// What the evidence excludes, each with the number that excludes it: the report's `ruled_out`. It
// is filled after the verdict and decides nothing.
//
//   report.ruled_out = ruled_out(evidence, report);    // {"sharding: in binary64 ...", ...}
#pragma once

#include <string>
#include <vector>

#include "harness/diagnose/classify.h"

namespace twinrun {

// `report` must have its verdict, probes, controls and switches already.
std::vector<std::string> ruled_out(const Evidence& evidence, const Report& report);

}  // namespace twinrun
