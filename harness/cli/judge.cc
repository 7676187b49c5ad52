// twinrun judge: holds every call of a recorded training step against its definition.
#include <fmt/format.h>

#include <filesystem>

#include "checkpoints/container/atomic_file.h"
#include "harness/cli/options.h"
#include "harness/cli/progress_printer.h"
#include "harness/trace/judge_trace.h"

namespace twinrun::cli {
namespace {

Status write_pages(const TraceVerdict& verdict, const std::string& dir) {
  std::error_code failed;
  std::filesystem::create_directories(dir, failed);
  if (failed) return Error{failed.message(), dir, "name a folder that can be made"};
  TWINRUN_RETURN_IF_ERROR(write_file_atomically(dir + "/report.json", trace_json(verdict)));
  return write_file_atomically(dir + "/report.html", trace_html(verdict));
}

}  // namespace

Result<int> judge_verb(const Args& args) {
  Options options;
  options.text("out,o", "folder for report.html, a page to read, and report.json");
  options.flag("partial", "judge the complete calls of a trace that was cut short");
  options.flag("ops", "list every operation with its worst ratio of error to bound");
  options.flag("json", "one JSON document on stdout");
  options.number<int>("threads", "threads to use", 2);
  options.flag("quiet,q", "print no progress");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args, "twinrun judge TRACE [-o DIR] [OPTIONS]",
                       "twinrun judge trace.twin -o judged", options, {"TRACE"}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  TWINRUN_ASSIGN(const TraceFile trace,
                 read_trace(parsed.get<std::string>("TRACE"), parsed.get<bool>("partial")));
  ThreadPool pool(threads);
  const StopFlag& stop = install_stop_flag();
  ProgressPrinter printer(parsed.get<bool>("quiet"), false);
  const TraceVerdict verdict = judge_trace(trace, &pool, &stop, &printer);
  if (stop.load()) return Error{"interrupted", trace.path, "", Error::Kind::kInterrupted};
  const std::string out = parsed.has("out") ? parsed.get<std::string>("out") : "";
  if (!out.empty()) TWINRUN_RETURN_IF_ERROR(write_pages(verdict, out));
  fmt::print("{}", parsed.get<bool>("json") ? trace_json(verdict)
                                            : trace_text(verdict, parsed.get<bool>("ops")));
  if (!out.empty() && !parsed.get<bool>("json"))
    fmt::print("\n{}: report.html, report.json\n", out);
  return verdict.outside_calls > 0 ? 20 : verdict.judged > 0 ? 0 : kExitUnavailable;
}

}  // namespace twinrun::cli
