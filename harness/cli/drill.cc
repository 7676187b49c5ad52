// twinrun drill: injects faults and causes, diagnoses them blind and counts the results.
#include "harness/drill/drill.h"

#include <fmt/format.h>
#include <unistd.h>

#include <ctime>
#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/cli.h"
#include "harness/cli/progress_printer.h"
#include "harness/host/environment.h"
#include "harness/host/folder_lock.h"

namespace twinrun::cli {
namespace {

constexpr int64_t kCases = 2400;

std::string today() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  return fmt::format("{:04}-{:02}-{:02}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday);
}

std::string machine() {
  const auto facts = environment();
  std::string text;
  for (const char* key : {"cpu", "isa"}) {
    if (const auto it = facts.find(key); it != facts.end())
      text += (text.empty() ? "" : ", ") + it->second;
  }
  return text;
}

Result<drill::DrillOptions> options_of(const Parsed& parsed) {
  drill::DrillOptions o;
  if (parsed.has("?SCENARIO.."))
    o.plan.scenarios = parsed.get<std::vector<std::string>>("?SCENARIO..");
  if (o.plan.scenarios.empty()) o.plan.scenarios = drill::litmus_scenarios();
  o.plan.cases = parsed.get<int64_t>("cases");
  if (o.plan.cases < 1 || o.plan.cases > 1'000'000)
    return Error{fmt::format("{} cases", o.plan.cases), "--cases", "allowed: 1 to 1000000"};
  o.plan.seed = parsed.get<uint64_t>("seed");
  if (parsed.has("level")) {
    const auto level = parsed.get<std::string>("level");
    if (level != "A" && level != "C")
      return Error{fmt::format("'{}' is no evidence level", level), "--level", "allowed: A, C"};
    o.plan.level = level[0];
  }
  if (parsed.has("case")) o.ids = parsed.get<std::vector<std::string>>("case");
  if (parsed.has("only")) o.only = parsed.get<std::string>("only");
  o.resume = parsed.get<bool>("resume");
  o.keep_all = parsed.get<bool>("keep") || !o.ids.empty();
  o.directory = parsed.get<std::string>("out");
  TWINRUN_ASSIGN(o.threads, threads_of(parsed));
  return o;
}

}  // namespace

int drill_verb(const Args& args) {
  po::options_description options("options");
  options.add_options()("cases", po::value<int64_t>()->default_value(kCases),
                        "how many, shared out over all strata")(
      "seed", po::value<uint64_t>()->default_value(1), "of what is injected where")(
      "only", po::value<std::string>(),
      "glob over kinds of faults and causes: of those cases only these, e.g. 'drop_*'")(
      "level", po::value<std::string>(),
      "A: the subject shows its ops; C: tensors only (default: both)")(
      "case", po::value<std::vector<std::string>>()->composing(),
      "ID: this case alone (repeatable); its report is kept")(
      "out,o", po::value<std::string>()->default_value("twinrun-results/drill"),
      "folder of the results: drill.json, drill.md, cases.jsonl, reports of wrong answers")(
      "resume", po::bool_switch(), "go on with what cases.jsonl has")("keep", po::bool_switch(),
                                                                      "keep every case's report");
  add_common_options(options);
  const Parsed parsed =
      parse(args, "twinrun drill [SCENARIO..] [OPTIONS]",
            "twinrun drill drill_mlp drill_cnn --cases 60", options, {"?SCENARIO.."});
  if (parsed.exit) return *parsed.exit;
  const auto o = options_of(parsed);
  if (!o) return fail(o.error());

  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  const auto lock = FolderLock::take(o->directory);
  if (!lock) return fail(lock.error());
  const auto drilled = drill::run_drill(*o, &printer, &stop);
  if (!drilled) return fail(drilled.error());
  if (drilled->interrupted) {
    return fail({fmt::format("interrupted after {} cases", drilled->records.size()), o->directory,
                 "the same command with --resume goes on"},
                kExitInterrupted);
  }
  const drill::DrillSummary summary = drill::summarise(drilled->records);
  const drill::Drilled what{command_line(), o->plan.seed, today(), machine()};
  const std::filesystem::path folder(o->directory);
  const std::string json = drill::to_json(summary, what);
  for (const auto& [name, text] :
       {std::pair{"drill.json", json}, std::pair{"drill.md", drill::to_markdown(summary, what)}}) {
    if (const Status written = write_file_atomically((folder / name).string(), text); !written)
      return fail(written.error());
  }
  if (parsed.get<bool>("json")) {
    fmt::print("{}\n", json);
  } else {
    fmt::print("{}", drill::to_terminal(summary, what));
  }
  return summary.misses.empty() ? 0 : 1;
}

}  // namespace twinrun::cli
