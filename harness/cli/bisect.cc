// twinrun bisect: chooses the axis, and replays a recorded session.
#include "harness/cli/bisect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/search/session.h"
#include "program/base/json_checksum.h"
#include "program/base/names.h"
#include "reports/text.h"

namespace twinrun::cli {

const Verb kBisectAxes[5] = {
    {"step", "the first step after which two runs or engines differ", bisect_step},
    {"op", "inside of that step, the first op, core and element", bisect_op},
    {"config", "the smallest set of scenario keys that makes the difference", bisect_config},
    {"rev", "the first bad commit of a repository of yours", bisect_rev},
    {"package", "the release of a package that made your script wrong, or right", bisect_package},
};

namespace {

// Prints a recorded session without running anything, or the help.
Result<int> replay(const Args& args) {
  Options options;
  options.text("replay", "session.jsonl of a search");
  options.flag("json", "with --replay: one JSON document on stdout");
  options.axes(kBisectAxes);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args,
            "twinrun bisect AXIS ...; twinrun bisect AXIS --help\n       twinrun bisect --replay "
            "SESSION.jsonl",
            "twinrun bisect op drill_mlp --b tpu --fault 'scale@dense1/kernel.grad,from=5'",
            options, {}));
  if (parsed.help) return 0;
  if (!parsed.has("replay"))
    return Error{"neither an axis nor --replay", "", "twinrun bisect --help lists the axes"};
  TWINRUN_ASSIGN(const auto record, bisect::read_session(parsed.get<std::string>("replay")));
  if (!record.has_checksums)
    say(fmt::format("note: {} {}\n", parsed.get<std::string>("replay"), kNoChecksum));
  if (parsed.get<bool>("json")) {
    nlohmann::ordered_json j = {{"schema", 1},
                                {"axis", record.head.axis},
                                {"command", record.head.command},
                                {"executions", nlohmann::ordered_json::array()}};
    for (const auto& e : record.executions) {
      j["executions"].push_back({{"candidate", e.candidate},
                                 {"outcome", bisect::to_string(e.outcome)},
                                 {"why", e.why},
                                 {"seconds", e.seconds},
                                 {"log", e.log}});
    }
    j["result"] = nlohmann::ordered_json::parse(record.result.empty() ? "null" : record.result);
    print_document(j.dump(2) + "\n");
    return 0;
  }
  // The session file may come from anywhere, so clean its text.
  print("{}\n", text::clean(record.head.command));
  text::Table table({{.title = "", .right = true},
                     {.title = "candidate"},
                     {.title = "answer"},
                     {.title = "why", .flexible = true},
                     {.title = "time", .right = true}});
  for (size_t i = 0; i < record.executions.size(); ++i) {
    const auto& e = record.executions[i];
    table.add({std::to_string(i + 1), text::clean(e.candidate),
               std::string(bisect::to_string(e.outcome)), text::clean(e.why),
               text::duration(e.seconds)});
  }
  for (const std::string& line : table.lines(terminal_width(), 2)) print("{}\n", line);
  print("{}\n", record.result.empty()
                    ? "not finished: run the same command with --resume to continue"
                    : "result: " + text::clean(record.result));
  return 0;
}

}  // namespace

void add_search_options(Options& options, const char* folder, int repeats, int retries) {
  options.text("out,o FOLDER",
               "folder of the results: session.jsonl, logs, and what the last good and the first "
               "bad candidate left",
               folder);
  options.number<int>("repeats", "executions of a candidate that must agree", repeats);
  options.number<int>("retries", "skips in a row after which a candidate counts as untestable",
                      retries);
  options.number<int>("most",
                      "most executions of a good candidate, where bad ones are sometimes good", 20);
  options.number<double>("confidence", "confidence of statements about flakiness", 0.95);
  options.number<double>(
      "timeout",
      "time limit of one execution in seconds; longer ones are ended and count as skips (0: none)",
      0);
  options.flag("resume", "continue from the folder's session.jsonl");
}

Result<bisect::Repeats> repeats_of(const Parsed& parsed) {
  bisect::Repeats r{parsed.get<int>("repeats"), parsed.get<int>("retries"), parsed.get<int>("most"),
                    parsed.get<double>("confidence")};
  for (const char* name : {"repeats", "retries", "most"}) {
    const int n = parsed.get<int>(name);
    if (n < 1 || n > 1000)
      return Error{std::to_string(n), fmt::format("--{}", name), "allowed: 1 to 1000"};
  }
  if (!(r.confidence > 0 && r.confidence < 1))
    return Error{fmt::format("{}", r.confidence), "--confidence", "allowed: between 0 and 1"};
  const double timeout = parsed.get<double>("timeout");
  if (!(timeout >= 0 && std::isfinite(timeout)))
    return Error{fmt::format("{}", timeout), "--timeout", "allowed: seconds, 0 for none"};
  return r;
}

std::string counts_text(int64_t executions, int64_t testable, int64_t untestable, int64_t bound) {
  return fmt::format("  {} of {}{}{}", text::plural(executions, "execution"),
                     text::plural(testable, "candidate"),
                     bound > 0 ? fmt::format(" (at most {} by halving)", bound) : "",
                     untestable > 0 ? fmt::format(", {} untestable", untestable) : "");
}

std::pair<Args, Args> split_command(const Args& args) {
  const auto dashes = std::ranges::find(args, "--");
  if (dashes == args.end()) return {args, {}};
  return {{args.begin(), dashes}, {dashes + 1, args.end()}};
}

Result<int> bisect_verb(const Args& args) {
  if (args.empty() || args[0].starts_with('-')) return replay(args);
  if (const Verb* axis = find_verb(kBisectAxes, args[0]))
    return axis->run(Args(args.begin() + 1, args.end()));
  std::vector<std::string> names;
  for (const Verb& axis : kBisectAxes) names.emplace_back(axis.name);
  return Error{fmt::format("unknown axis '{}' (known: {})", args[0], join(names, ", ")), "",
               did_you_mean(args[0], names)};
}

}  // namespace twinrun::cli
