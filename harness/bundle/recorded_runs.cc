// Reads the run files of a results folder and compares them with the report.
#include "harness/bundle/recorded_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "checkpoints/run.h"
#include "program/base/bits.h"

namespace twinrun {
namespace {

// What differs; "" if nothing does.
std::string difference(const RunSummary& run, const RunFile& file) {
  if (const std::string digest = file.root_digest().hex(); run.root_digest != digest)
    return fmt::format("its digest is {}; the report says {}", digest, run.root_digest);
  const auto steps = static_cast<int64_t>(file.steps.size());
  if (run.steps != steps)
    return fmt::format("it has {} steps; the report says {}", steps, run.steps);
  const bool same = std::ranges::equal(
      run.losses, file.steps, {}, [](float loss) { return to_bits(loss); },
      [](const StepScalars& step) { return to_bits(step.loss); });
  return same || run.losses.empty() ? "" : "its losses are not those of the report";
}

}  // namespace

Status check_recorded_runs(const Report& report, const std::string& folder,
                           std::vector<std::string>& notes) {
  for (const RunSummary& run : report.runs) {
    const std::string name = run.name + ".h5";
    const std::string path = (std::filesystem::path(folder) / "runs" / name).string();
    if (std::error_code ignored; !std::filesystem::exists(path, ignored)) {
      if (run.ended.completed())
        notes.push_back(
            fmt::format("runs/{} is missing, so the report's digest of run {} was not checked",
                        name, run.name));
      continue;
    }
    TWINRUN_ASSIGN(const RunFile file, read_run(path));
    if (const std::string what = difference(run, file); !what.empty())
      return Error{"is not of the run in report.json: " + what, path,
                   "one of the two files was changed after the diagnosis: restore it, or diagnose "
                   "again"};
  }
  return Ok{};
}

}  // namespace twinrun
