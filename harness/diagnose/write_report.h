// Writes a report in all its formats.
#pragma once

#include <string>

#include "program/base/result.h"
#include "reports/report.h"

namespace twinrun {

// Into a folder, which is made.
Status write_report(const std::string& folder, const Report& report);

}  // namespace twinrun
