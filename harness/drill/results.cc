// Writes the files of a finished drill.
#include "harness/drill/results.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoints/container/atomic_file.h"
#include "harness/host/environment.h"
#include "program/base/digest.h"

namespace twinrun::drill {
namespace {

std::string run_json(const DrillSummary& s, const std::string& command) {
  const auto facts = environment();
  const nlohmann::ordered_json json = {{"schema", 2},
                                       {"core_seconds_per_case", s.seconds + s.truth_seconds},
                                       {"of_them_for_the_truth", s.truth_seconds},
                                       {"command", command},
                                       {"machine", facts.at("cpu") + ", " + facts.at("isa")},
                                       {"build", digest_of_executable().hex()}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

Result<DrillSummary> write_results(const std::string& folder,
                                   const std::vector<CaseRecord>& records,
                                   const std::string& command) {
  DrillSummary summary = summarise(records);
  const std::filesystem::path path(folder);
  for (const auto& [name, text] :
       {std::pair{"drill.json", to_json(summary)}, std::pair{"drill.md", to_markdown(summary)},
        std::pair{"cases.csv", to_csv(records)},
        std::pair{"run.json", run_json(summary, command)}}) {
    TWINRUN_RETURN_IF_ERROR(write_file_atomically((path / name).string(), text));
  }
  return summary;
}

}  // namespace twinrun::drill
