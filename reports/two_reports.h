// Two diagnoses of one script under two installations, side by side: the verdict of each, and what
// each names first. Used where a side has no trace, only its report.json.
#pragma once

#include <string>

#include "program/base/result.h"
#include "reports/report.h"

namespace twinrun {

struct SideReport {
  std::string name;
  VerdictClass verdict = VerdictClass::kInconclusive;
  std::string headline;
  std::string cause, sentence;  // of the first finding; "" without any
  bool has_checksum = true;     // json_checksum.h
};
// Errors: no such file; not the report of a diagnosis; changed after it was written.
Result<SideReport> read_side_report(const std::string& path, std::string name);

struct TwoReports {
  SideReport a, b;
  // The graver of both: a fault of an engine, then what the program means, then what is not known.
  VerdictClass verdict() const;
  std::string side() const;  // "A", "B", "A and B": whose verdict that is
};
std::string two_reports_text(const TwoReports& both);
std::string two_reports_json(const TwoReports& both);
std::string two_reports_html(const TwoReports& both);

}  // namespace twinrun
