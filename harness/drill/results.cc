// Writes the files of a finished drill.
#include "harness/drill/results.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoints/container/atomic_file.h"

namespace twinrun::drill {
namespace {

std::string run_json(const DrillSummary& s, const std::vector<campaign::RunFacts>& runs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const campaign::RunFacts& run : runs)
    list.push_back({{"command", run.command},
                    {"date", run.date},
                    {"machine", run.machine},
                    {"build", run.build}});
  const nlohmann::ordered_json json = {{"schema", 1},
                                       {"core_seconds_per_case", s.seconds + s.truth_seconds},
                                       {"of_them_for_the_truth", s.truth_seconds},
                                       {"runs", list}};
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

Result<DrillSummary> write_results(const std::string& folder,
                                   const std::vector<CaseRecord>& records,
                                   const std::vector<campaign::RunFacts>& runs) {
  DrillSummary summary = summarise(records);
  const std::filesystem::path path(folder);
  for (const auto& [name, text] :
       {std::pair{"drill.json", to_json(summary)}, std::pair{"drill.md", to_markdown(summary)},
        std::pair{"cases.csv", to_csv(records)}, std::pair{"run.json", run_json(summary, runs)}}) {
    TWINRUN_RETURN_IF_ERROR(write_file_atomically((path / name).string(), text));
  }
  return summary;
}

}  // namespace twinrun::drill
