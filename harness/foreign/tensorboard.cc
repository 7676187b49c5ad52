// Makes TensorBoard event files from the runs of a report.
#include "harness/foreign/tensorboard.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "harness/foreign/curves.h"
#include "harness/foreign/event_file.h"
#include "reports/text.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

// Run names come from a file: accept only names that stay within the folder.
bool is_folder_name(const std::string& name) {
  return !name.empty() && name.size() <= 64 && name.front() != '.' &&
         std::ranges::all_of(name, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                  c == '_' || c == '-' || c == '.' || c == '#';
         });
}

std::vector<Curve> curves_of(const RunSummary& run) {
  Curve loss{.name = "loss", .binary32 = true};
  for (size_t i = 0; i < run.losses.size(); ++i) {
    loss.steps.push_back(static_cast<int64_t>(i));
    loss.values.push_back(static_cast<double>(run.losses[i]));
  }
  std::vector<Curve> all = {loss};
  if (run.evaluated) {
    all.push_back({"held_out/loss", {run.steps}, {run.eval_loss}});
    if (run.scored) all.push_back({"held_out/accuracy", {run.steps}, {run.eval_accuracy}});
  }
  return all;
}

}  // namespace

Result<std::vector<ReportFile>> tensorboard_files(const Report& report, const std::string& folder) {
  std::vector<ReportFile> files;
  for (const RunSummary& run : report.runs) {
    if (!is_folder_name(run.name))
      return Error{fmt::format("the report has a run named '{}'; allowed: at most 64 letters, "
                               "digits and _ - . #, not beginning with a dot",
                               text::clip(text::clean(run.name), 40)),
                   folder, "this report was not made by twinrun"};
    const fs::path path = fs::path(folder) / "runs" / (run.name + ".h5");
    std::vector<Curve> curves;
    std::error_code ignored;
    if (fs::exists(path, ignored)) {
      TWINRUN_ASSIGN(const RunFile file, read_run(path.string()));
      curves = curves_of(file);
    } else {
      curves = curves_of(run);
    }
    files.push_back({run.name + "/events.out.tfevents.0.twinrun", event_file(curves)});
  }
  if (files.empty()) return Error{"the report contains no run", folder, ""};
  return files;
}

}  // namespace twinrun
