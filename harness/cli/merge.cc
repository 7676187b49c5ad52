// twinrun merge: joins the records of a campaign's shards and makes their tables.
#include "harness/campaign/merge.h"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/options.h"
#include "harness/cli/progress_printer.h"
#include "harness/drill/results.h"
#include "harness/gate/pairs.h"
#include "harness/host/folder_lock.h"

namespace twinrun::cli {
namespace {

// The records and the plan, as a campaign that ran whole leaves them.
Status write_records(const campaign::Merged& merged, const std::string& folder) {
  std::string text;
  for (const std::string& line : merged.lines) text += line + "\n";
  const std::filesystem::path path(folder);
  TWINRUN_RETURN_IF_ERROR(write_file_atomically((path / merged.plan.records).string(), text));
  return write_file_atomically((path / campaign::kPlanFile).string(),
                               campaign::to_json(merged.plan));
}

Result<int> merged_drill(const campaign::Merged& merged, const std::string& folder, bool json) {
  std::vector<drill::CaseRecord> records;
  for (const std::string& line : merged.lines) {
    TWINRUN_ASSIGN(auto record, drill::from_line(line));
    records.push_back(std::move(record));
  }
  TWINRUN_ASSIGN(const auto summary, drill::write_results(folder, records, merged.runs));
  if (json) {
    print_document(drill::to_json(summary) + "\n");
  } else {
    print_text(drill::to_terminal(summary));
  }
  return summary.misses.empty() ? 0 : 1;
}

Result<int> merged_compare(const campaign::Merged& merged, const std::string& folder, bool json) {
  TWINRUN_ASSIGN(const CompareQuestion question, question_from(merged.plan.setting));
  std::vector<Pair> pairs;
  for (const std::string& line : merged.lines) {
    TWINRUN_ASSIGN(Pair pair, pair_from(line));
    pairs.push_back(std::move(pair));
  }
  const Comparison comparison = conclude(question, pairs);
  const std::filesystem::path path(folder);
  const std::string document = to_json(comparison) + "\n";
  TWINRUN_RETURN_IF_ERROR(write_file_atomically((path / "comparison.json").string(), document));
  TWINRUN_RETURN_IF_ERROR(write_file_atomically((path / "pairs.csv").string(), to_csv(comparison)));
  if (json) {
    print_document(document);
  } else {
    print_text(to_terminal(comparison, terminal_width()));
  }
  return exit_code(comparison.outcome);
}

// Of the shards of a campaign whose tables another program makes (`./dev cases`).
Result<int> merged_records(const campaign::Merged& merged, const std::string& folder, bool json) {
  const std::string path = (std::filesystem::path(folder) / merged.plan.records).string();
  if (json) {
    print_document(campaign::to_json(merged.plan));
  } else {
    print("{} cases of {}: {}\n", merged.lines.size(), merged.plan.verb, path);
  }
  return 0;
}

}  // namespace

Result<int> merge_verb(const Args& args) {
  Options options;
  options.text("out,o", "folder of the merged campaign: its records, tables and run.json",
               "twinrun-results/merged");
  options.flag("json", "one JSON document on stdout");
  options.flag("quiet,q", "no progress");
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun merge FOLDER.. [OPTIONS]",
            "twinrun merge twinrun-results/drill -o twinrun-results/whole", options, {"FOLDER.."}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const campaign::Merged merged,
                 campaign::merge(parsed.get<std::vector<std::string>>("FOLDER..")));
  ProgressPrinter printer(parsed.get<bool>("quiet"), false);
  for (const std::string& note : merged.notes) printer.note(note);
  const std::string folder = parsed.get<std::string>("out");
  TWINRUN_ASSIGN(const auto lock, FolderLock::take(folder));
  TWINRUN_RETURN_IF_ERROR(write_records(merged, folder));
  const bool json = parsed.get<bool>("json");
  if (merged.plan.verb == "drill") return merged_drill(merged, folder, json);
  if (merged.plan.verb == "compare") return merged_compare(merged, folder, json);
  return merged_records(merged, folder, json);
}

}  // namespace twinrun::cli
