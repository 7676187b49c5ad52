// twinrun_dev drill: injects faults and causes, diagnoses them blind and counts the results.
#include "harness/drill/drill.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>

#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "harness/developers/developers.h"
#include "harness/drill/results.h"
#include "harness/host/folder_lock.h"

namespace twinrun::cli {
namespace {

constexpr int64_t kCases = 2400;

constexpr int64_t kMostShares = 100'000;

// Shares count from 0, as the array tasks of Slurm and the indexed jobs of Kubernetes do.
Status read_share(const std::string& text, drill::DrillOptions& o) {
  const char *at = text.data(), *end = at + text.size();
  const auto index = std::from_chars(at, end, o.share);
  if (index.ec == std::errc() && index.ptr != end && *index.ptr == '/') {
    const auto count = std::from_chars(index.ptr + 1, end, o.shares);
    if (count.ec == std::errc() && count.ptr == end && 0 <= o.share && o.share < o.shares &&
        o.shares <= kMostShares)
      return Ok{};
  }
  return Error{fmt::format("found '{}'", text), "--share",
               fmt::format("allowed: I/N with N from 1 to {} and I from 0 to N - 1", kMostShares)};
}

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
  o.directory = parsed.get<std::string>("out");
  if (parsed.has("share")) TWINRUN_RETURN_IF_ERROR(read_share(parsed.get<std::string>("share"), o));
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
               "wrong answers",
               "twinrun-results/drill");
  options.text(
      "share I/N",
      "only each Nth case from the Ith on, counted from 0; the cases.jsonl of all shares in "
      "one file are a drill that --resume completes");
  options.flag("resume", "continue from cases.jsonl");
  options.flag("keep", "keep every case's report");
  add_common_options(options);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun_dev drill [SCENARIO..|--program FILE] [OPTIONS]",
            "twinrun_dev drill drill_mlp drill_cnn --cases 60", options, {"?SCENARIO.."}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const auto o, options_of(parsed));

  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  TWINRUN_ASSIGN(const auto lock, FolderLock::take(o.directory));
  TWINRUN_ASSIGN(const auto drilled, drill::run_drill(o, &printer, &stop));
  if (drilled.interrupted) {
    return Error{fmt::format("interrupted after {} cases", drilled.records.size()), o.directory,
                 "run the same command with --resume to continue", Error::Kind::kInterrupted};
  }
  TWINRUN_ASSIGN(const drill::DrillSummary summary,
                 drill::write_results(o.directory, drilled.records, command_line()));
  return show(summary, parsed.get<bool>("json"));
}

}  // namespace twinrun::cli
