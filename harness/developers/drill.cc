// twinrun_dev drill: injects faults and causes, diagnoses them blind and counts the results.
#include "harness/drill/drill.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "harness/cli/shards.h"
#include "harness/developers/developers.h"
#include "harness/drill/results.h"
#include "harness/host/folder_lock.h"

namespace twinrun::cli {
namespace {

constexpr int64_t kCases = 2400;
constexpr const char* kFolder = "twinrun-results/drill";

Result<drill::DrillOptions> options_of(const Parsed& parsed) {
  drill::DrillOptions o;
  if (parsed.has("?SCENARIO.."))
    o.plan.scenarios = parsed.get<std::vector<std::string>>("?SCENARIO..");
  TWINRUN_ASSIGN(o.plan.program, program_files_of(parsed));
  if (!o.plan.scenarios.empty() && !o.plan.program.program.empty())
    return Error{"both scenarios and --program", "", "give one of them"};
  if (o.plan.scenarios.empty()) o.plan.scenarios = drill::litmus_scenarios();
  o.plan.cases = parsed.get<int64_t>("cases");
  if (o.plan.cases < 1 || o.plan.cases > 1'000'000)
    return Error{fmt::format("{} cases", o.plan.cases), "--cases", "allowed: 1 to 1000000"};
  o.plan.seed = parsed.get<uint64_t>("seed");
  if (parsed.has("level")) o.plan.level = parsed.get<std::string>("level")[0];
  if (parsed.has("case")) o.ids = parsed.get<std::vector<std::string>>("case");
  if (parsed.has("only")) o.only = parsed.get<std::string>("only");
  o.resume = parsed.get<bool>("resume");
  o.keep_all = parsed.get<bool>("keep") || !o.ids.empty();
  o.directory = out_of(parsed, kFolder);
  TWINRUN_ASSIGN(o.shard, shard_of(parsed));
  if (parsed.has("shard")) {
    // The shards on one machine share their reference runs.
    o.cache = (std::filesystem::path(o.directory) / "references").string();
    o.directory = shard_folder(o.directory, o.shard);
  }
  o.run = run_facts();
  TWINRUN_ASSIGN(o.threads, threads_of(parsed));
  return o;
}

Result<int> show(const drill::DrillSummary& summary, bool json) {
  if (json) {
    print_document(drill::to_json(summary) + "\n");
  } else {
    print_text(drill::to_terminal(summary));
  }
  return summary.misses.empty() ? 0 : 1;
}

// --merge: the cases of all shards, or the records of a campaign whose tables another program makes
// (`./dev cases`).
Result<int> drill_merged(const Parsed& parsed) {
  TWINRUN_ASSIGN(const JoinedShards all, joined_shards(parsed));
  const campaign::Plan& plan = all.merged.plan;
  const bool json = parsed.get<bool>("json");
  if (plan.verb != "drill") {
    if (json) {
      print_document(campaign::to_json(plan));
    } else {
      print("{} cases of {}: {}\n", all.merged.lines.size(), plan.verb,
            (std::filesystem::path(all.folder) / plan.records).string());
    }
    return 0;
  }
  std::vector<drill::CaseRecord> records;
  for (const std::string& line : all.merged.lines) {
    TWINRUN_ASSIGN(auto record, drill::from_line(line));
    records.push_back(std::move(record));
  }
  TWINRUN_ASSIGN(const auto summary, drill::write_results(all.folder, records, all.merged.runs));
  return show(summary, json);
}

}  // namespace

Result<int> drill_verb(const Args& args) {
  Options options;
  add_program_files(options);
  options.number<int64_t>("cases", "number of cases, spread over all strata", kCases);
  options.number<uint64_t>("seed", "seed of the choice of faults and causes", 1);
  options.text("only GLOB",
               "glob over kinds of faults and causes: only cases of these, e.g. 'drop_*'");
  options.one_of("level", "evidence level (default: both)",
                 {{"A", "the subject shows its ops"}, {"C", "tensors only"}});
  options.list("case ID", "run only this case (repeatable) and keep its report");
  options.text("out,o FOLDER",
               "folder of the results: drill.json, drill.md, cases.csv, cases.jsonl, reports of "
               "wrong answers (default twinrun-results/drill)");
  add_shard_option(options);
  add_merge_option(options);
  options.flag("resume", "continue from cases.jsonl");
  options.flag("keep", "keep every case's report");
  add_common_options(options);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun_dev drill [SCENARIO..|--program FILE] [OPTIONS]",
            "twinrun_dev drill drill_mlp drill_cnn --cases 60", options, {"?SCENARIO.."}));
  if (parsed.help) return 0;
  if (parsed.has("merge")) return drill_merged(parsed);
  TWINRUN_ASSIGN(const auto o, options_of(parsed));

  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  TWINRUN_ASSIGN(const auto lock, FolderLock::take(o.directory));
  TWINRUN_ASSIGN(const auto drilled, drill::run_drill(o, &printer, &stop));
  if (drilled.interrupted) {
    return Error{fmt::format("interrupted after {} cases", drilled.records.size()), o.directory,
                 "run the same command with --resume to continue", Error::Kind::kInterrupted};
  }
  if (parsed.has("shard")) {
    const auto failed = std::ranges::count_if(
        drilled.records, [](const drill::CaseRecord& r) { return !r.error.empty(); });
    print_shard(drilled.plan, out_of(parsed, kFolder), failed, parsed.get<bool>("json"));
    return 0;
  }
  TWINRUN_ASSIGN(const drill::DrillSummary summary,
                 drill::write_results(o.directory, drilled.records, {o.run}));
  return show(summary, parsed.get<bool>("json"));
}

}  // namespace twinrun::cli
