// What the evidence excludes, with the number that does: the report's `ruled_out`. Nothing is judged here.
//
//   report.ruled_out = ruled_out(evidence, report);    // {"sharding: in binary64 ...", ...}
#pragma once

#include <string>
#include <vector>

#include "harness/diagnose/classify.h"

namespace twinrun {

// `report`: with its verdict, probes, controls and switches.
std::vector<std::string> ruled_out(const Evidence& evidence, const Report& report);

}  // namespace twinrun
