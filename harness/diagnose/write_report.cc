// Writes a report in all its formats.
#include "harness/diagnose/write_report.h"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoints/container/atomic_file.h"

namespace twinrun {

Status write_report(const std::string& folder, const Report& report) {
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed) return Error{failed.message(), folder, "name a folder that can be made"};
  for (const ReportFormat& format : report_formats())
    TWINRUN_RETURN_IF_ERROR(
        write_file_atomically(fmt::format("{}/{}", folder, format.file), format.render(report)));
  return Ok{};
}

void copy_report(const std::string& from, const std::string& to) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  fs::create_directories(to, ignored);
  for (const ReportFormat& format : report_formats())
    fs::copy_file(fs::path(from) / format.file, fs::path(to) / format.file,
                  fs::copy_options::overwrite_existing, ignored);
}

}  // namespace twinrun
