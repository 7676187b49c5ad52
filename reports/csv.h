// Every table of a report for spreadsheets and scripts: a CSV file each (RFC 4180, UTF-8, lines end in CR LF).
//
//   for (const ReportFile& file : to_csv(report)) write(folder / file.name, file.content);
#pragma once

#include <string>
#include <vector>

#include "reports/report.h"

namespace twinrun {

struct ReportFile {
  std::string name;  // within the format's folder: "losses.csv"
  std::string content;
};

// Columns are the keys of report.json, in its order; losses.csv has one column for each run. A table without rows is left out. Text
// that begins as a formula does (= + - @) gets an apostrophe before it: spreadsheets would run it.
std::vector<ReportFile> to_csv(const Report& report);

}  // namespace twinrun
