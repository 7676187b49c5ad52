// twinrun judge: holds every call of a recorded training step against its definition.
#include <fmt/format.h>

#include "harness/cli/options.h"
#include "harness/trace/judge_trace.h"

namespace twinrun::cli {

Result<int> judge_verb(const Args& args) {
  Options options;
  options.flag("partial", "judge the complete calls of a trace that was cut short");
  options.flag("ops", "list every operation with its worst ratio of error to bound");
  options.flag("json", "one JSON document on stdout");
  options.number<int>("threads", "threads to use", 2);
  TWINRUN_ASSIGN(const Parsed parsed, parse(args, "twinrun judge TRACE [OPTIONS]",
                                            "twinrun judge trace.twin", options, {"TRACE"}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  TWINRUN_ASSIGN(const TraceFile trace,
                 read_trace(parsed.get<std::string>("TRACE"), parsed.get<bool>("partial")));
  ThreadPool pool(threads);
  const StopFlag& stop = install_stop_flag();
  const TraceVerdict verdict = judge_trace(trace, &pool, &stop);
  if (stop.load()) return Error{"interrupted", trace.path, "", Error::Kind::kInterrupted};
  fmt::print("{}", parsed.get<bool>("json") ? trace_json(verdict)
                                            : trace_text(verdict, parsed.get<bool>("ops")));
  return verdict.outside_calls > 0 ? 20 : verdict.judged > 0 ? 0 : kExitUnavailable;
}

}  // namespace twinrun::cli
