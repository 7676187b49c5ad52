// The option --shard, and facts about a run for plan.json.
#include "harness/cli/shards.h"

#include <fmt/format.h>

#include <ctime>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/output.h"
#include "harness/cli/progress_printer.h"
#include "harness/host/command.h"
#include "harness/host/environment.h"
#include "program/base/digest.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

}  // namespace

void add_shard_option(Options& options) {
  options.text("shard I/N",
               "only the cases of shard I of N, counted from 0, in OUT/shard-I-of-N; when all "
               "N are done, --merge OUT makes the tables");
  options.takes("shard", {.names = {"0/"}});
}

Result<campaign::Shard> shard_of(const Parsed& parsed) {
  if (!parsed.has("shard")) return campaign::Shard{};
  return campaign::parse_shard(parsed.get<std::string>("shard"));
}

std::string shard_folder(const std::string& out, const campaign::Shard& shard) {
  return (std::filesystem::path(out) / campaign::folder_of(shard)).string();
}

campaign::RunFacts run_facts() {
  const auto facts = environment();
  return {.command = command_line(),
          .date = today(),
          .machine = facts.at("cpu") + ", " + facts.at("isa"),
          .build = digest_of_executable().hex()};
}

void print_shard(const campaign::Plan& plan, const std::string& out, int64_t failed, bool json) {
  if (json) {
    const nlohmann::ordered_json document = {{"schema", 1},
                                             {"shard", campaign::to_string(plan.shard)},
                                             {"cases", plan.cases.size()},
                                             {"of", plan.total},
                                             {"failed", failed}};
    print_document(document.dump(2) + "\n");
    return;
  }
  print("shard {}: {} of {} cases{}; when all shards are done: {} {} --merge {}\n",
        campaign::to_string(plan.shard), plan.cases.size(), plan.total,
        failed > 0 ? fmt::format(", {} of them failed", failed) : "", tool().name, plan.verb,
        shell_word(out));
}

void add_merge_option(Options& options) {
  options.list(
      "merge FOLDER",
      "run nothing: join the shards in this folder (repeatable) and make the tables, in -o "
      "(default twinrun-results/merged)");
}

std::string out_of(const Parsed& parsed, const std::string& otherwise) {
  return parsed.has("out") ? parsed.get<std::string>("out") : otherwise;
}

Result<JoinedShards> joined_shards(const Parsed& parsed) {
  const std::string folder = out_of(parsed, "twinrun-results/merged");
  TWINRUN_ASSIGN(campaign::Merged merged,
                 campaign::merge(parsed.get<std::vector<std::string>>("merge")));
  ProgressPrinter printer(parsed.get<bool>("quiet"), false);
  for (const std::string& note : merged.notes) printer.note(note);
  TWINRUN_ASSIGN(FolderLock lock, FolderLock::take(folder));
  std::string text;
  for (const std::string& line : merged.lines) text += line + "\n";
  const std::filesystem::path path(folder);
  TWINRUN_RETURN_IF_ERROR(write_file_atomically((path / merged.plan.records).string(), text));
  TWINRUN_RETURN_IF_ERROR(
      write_file_atomically((path / campaign::kPlanFile).string(), campaign::to_json(merged.plan)));
  return JoinedShards{std::move(merged), folder, std::move(lock)};
}

}  // namespace twinrun::cli
