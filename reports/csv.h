// Every table of a report as a CSV file, for spreadsheets and scripts (RFC 4180, UTF-8, lines end
// in CR LF).
//
//   for (const ReportFile& file : to_csv(report)) write(folder / file.name, file.content);
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/report.h"

namespace twinrun {

struct ReportFile {
  std::string name;  // within the folder of the format: "losses.csv"
  std::string content;
};

// Columns are the keys of report.json, in its order; losses.csv has one column for each run. A
// table without rows is left out. Text that begins like a formula (= + - @) gets a leading
// apostrophe, since spreadsheets would evaluate it.
std::vector<ReportFile> to_csv(const Report& report);

// A text as a field: in quotes where it needs them, and with that apostrophe.
std::string csv_field(std::string_view text);

}  // namespace twinrun
