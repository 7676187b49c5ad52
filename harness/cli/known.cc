// Keeps the digests of a recorded step, and verifies another recording by them.
#include "harness/cli/known.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/diagnose_what.h"
#include "harness/cli/progress_printer.h"
#include "harness/diagnose/write_report.h"
#include "harness/trace/known_step.h"
#include "harness/trace/side.h"
#include "program/base/json_checksum.h"
#include "reports/text.h"

namespace twinrun::cli {

std::optional<Error> given_to_python(const std::string& verb, const Args& args,
                                     const Options& options) {
  // A golden run names an engine.
  const auto names_engine = [](const std::string& word) {
    return word == "-e" || word.starts_with("--engine");
  };
  const auto is_script = [&](size_t at) { return args[at].ends_with(".py"); };
  if (std::ranges::any_of(args, names_engine) ||
      std::ranges::none_of(arguments_at(args, options), is_script))
    return std::nullopt;
  Args words = {verb};
  words.insert(words.end(), args.begin(), args.end());
  return become_package(words);
}

Result<int> record_known(const Parsed& parsed) {
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  const auto path = parsed.has("out") ? parsed.get<std::string>("out") : std::string("known.json");
  TWINRUN_RETURN_IF_ERROR(check_output(path));
  TWINRUN_ASSIGN(const TraceFile trace, read_trace(parsed.get<std::string>("?SCENARIO"), false));
  std::optional<TraceFile> again;
  if (parsed.has("again")) {
    TWINRUN_ASSIGN(again, read_trace(parsed.get<std::string>("again"), false));
  }
  ThreadPool pool(threads);
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  TWINRUN_ASSIGN(const KnownStep known,
                 know(trace, again ? &*again : nullptr, &pool, &stop, &printer));
  if (stop.load())
    return Error{"interrupted: nothing was written", "", "", Error::Kind::kInterrupted};
  TWINRUN_RETURN_IF_ERROR(unchanged(trace));
  if (again) TWINRUN_RETURN_IF_ERROR(unchanged(*again));
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(path, to_json(known)));
  const auto unsteady = std::ranges::count(known.calls, false, &KnownCall::steady);
  if (parsed.get<bool>("json")) {
    const nlohmann::ordered_json j = {{"schema", 1},
                                      {"file", path},
                                      {"calls", known.calls.size()},
                                      {"unsteady", unsteady},
                                      {"accelerator", known.accelerator},
                                      {"root_digest", known.root().hex()}};
    print_document(j.dump() + "\n");
    return 0;
  }
  print("{}: {} in {}, {}\n  digest {}\n", path,
        text::plural(static_cast<int64_t>(known.calls.size()), "call"),
        text::plural(known.steps, "step"), text::clean(known.framework), known.root().hex());
  if (unsteady > 0)
    print("  {} do not repeat their bits here and are never compared\n",
          text::plural(unsteady, "call"));
  return 0;
}

Result<int> verify_known_step(const Parsed& parsed, const std::string& known,
                              const std::string& trace_path) {
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  TWINRUN_ASSIGN(const KnownStep then, read_known(known));
  if (!then.has_checksum) say(fmt::format("note: {} {}\n", known, kNoChecksum));
  TWINRUN_ASSIGN(const TraceFile trace, read_trace(trace_path, false));
  ThreadPool pool(threads);
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  const KnownVerdict verdict = verify_known(then, trace, &pool, &stop, &printer);
  if (stop.load()) return Error{"interrupted", "", "", Error::Kind::kInterrupted};
  TWINRUN_RETURN_IF_ERROR(unchanged(trace));
  Report report = report_of(verdict);
  report.scenario_name = trace.script;
  report.command = command_line();
  if (parsed.has("out")) {
    report.directory = parsed.get<std::string>("out");
    TWINRUN_RETURN_IF_ERROR(write_report(report.directory, report));
  }
  return answer(report, parsed);
}

}  // namespace twinrun::cli
