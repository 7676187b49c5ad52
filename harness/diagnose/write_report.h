// Writes a report in all its formats.
#pragma once

#include <string>

#include "program/base/result.h"
#include "reports/report.h"

namespace twinrun {

// Into a folder, which is made.
Status write_report(const std::string& folder, const Report& report);
// Copies the files that write_report has left in a folder; those that cannot be copied are left out.
void copy_report(const std::string& from, const std::string& to);

}  // namespace twinrun
