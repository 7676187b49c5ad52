// Compares what two installations compute in one script's steps: their traces, or where a script
// has itself diagnosed, their reports.
#include "harness/cli/two_sides.h"

#include <fmt/format.h>

#include "checkpoints/container/temporary.h"
#include "harness/cli/progress_printer.h"
#include "harness/module/compare_reports.h"
#include "harness/trace/compare_traces.h"
#include "harness/trace/side.h"
#include "reports/two_reports.h"

namespace twinrun::cli {
namespace {

Result<int> judge_reports(const Parsed& parsed, const RecordedSide& a, const RecordedSide& b,
                          ThreadPool* pool) {
  if (!a.trace.empty() || !b.trace.empty()) {
    return Error{"one side has a trace, the other only the report of a diagnosis",
                 a.trace.empty() ? a.name : b.name,
                 "give traces of `python -m twinrun watch` for both sides, or reports for both"};
  }
  TWINRUN_ASSIGN(const auto one, read_side_report(a.report, a.name));
  TWINRUN_ASSIGN(const auto other, read_side_report(b.report, b.name));
  TwoReports both{one, other, {}};
  if (one.step && other.step) {
    TWINRUN_ASSIGN(both.values, compare_reports(*one.step, *other.step, pool));
  }
  const std::string out = parsed.has("out") ? parsed.get<std::string>("out") : "";
  if (!out.empty()) {
    TWINRUN_RETURN_IF_ERROR(write_pages(out, two_reports_html(both), two_reports_json(both)));
  }
  if (parsed.get<bool>("json")) {
    print_document(two_reports_json(both));
  } else {
    print_text(two_reports_text(both));
  }
  return exit_code(both.verdict());
}

}  // namespace

void add_side_options(Options& options) {
  options.text("a",
               "side A instead of a scenario: 'exec:PYTHON SCRIPT ARGS', a trace of watch, or the "
               "report.json of a diagnosis");
  options.text("b", "side B, such as the same script under another installation");
  options.number<int>("steps", "--a, --b: how many optimizer steps to record", 2);
  options.number<int>("first", "--a, --b: the first of them, from 0", 0);
}

Result<int> diagnose_sides(const Parsed& parsed) {
  if (!parsed.has("a") || !parsed.has("b"))
    return Error{"both --a and --b are needed", "", "twinrun diagnose --a A.twin --b B.twin"};
  if (parsed.has("?SCENARIO"))
    return Error{"--a and --b stand instead of a scenario", parsed.get<std::string>("?SCENARIO"),
                 "leave out the scenario"};
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  TWINRUN_ASSIGN(const TemporaryFolder work, TemporaryFolder::make("sides"));
  SideOptions options;
  options.steps = parsed.get<int>("steps");
  options.first = parsed.get<int>("first");
  if (options.steps < 1 || options.first < 0)
    return Error{"--steps must be at least 1, --first at least 0", "", ""};
  options.stop = &stop;
  options.progress = &printer;
  RecordedSide sides[2];
  for (const bool is_a : {true, false}) {
    options.folder = work.path() + (is_a ? "/a" : "/b");
    TWINRUN_RETURN_IF_ERROR(new_folder(options.folder));
    TWINRUN_ASSIGN(sides[is_a ? 0 : 1],
                   side_of(parsed.get<std::string>(is_a ? "a" : "b"), options));
  }
  const auto& [a, b] = sides;
  ThreadPool pool(threads);
  if (a.trace.empty() || b.trace.empty()) return judge_reports(parsed, a, b, &pool);

  TWINRUN_ASSIGN(const TraceFile trace_a, read_trace(a.trace, false));
  TWINRUN_ASSIGN(const TraceFile trace_b, read_trace(b.trace, false));
  TwoSides both = compare_traces(trace_a, trace_b, &pool, &stop, &printer);
  if (stop.load()) return Error{"interrupted", "", "", Error::Kind::kInterrupted};
  TWINRUN_RETURN_IF_ERROR(unchanged(trace_a));
  TWINRUN_RETURN_IF_ERROR(unchanged(trace_b));
  both.a_name = a.name;
  both.b_name = b.name;
  const std::string out = parsed.has("out") ? parsed.get<std::string>("out") : "";
  if (!out.empty()) {
    TWINRUN_RETURN_IF_ERROR(write_pages(out, two_sides_html(both), two_sides_json(both)));
    TWINRUN_RETURN_IF_ERROR(write_pages(out + "/a", trace_html(both.a), trace_json(both.a)));
    TWINRUN_RETURN_IF_ERROR(write_pages(out + "/b", trace_html(both.b), trace_json(both.b)));
  }
  const bool json = parsed.get<bool>("json");
  if (json) {
    print_document(two_sides_json(both));
  } else {
    print_text(two_sides_text(both));
  }
  if (!out.empty() && !json)
    print("\n{}: report.html, report.json, and each side's in a/ and b/\n", out);
  return exit_code(both.verdict);
}

}  // namespace twinrun::cli
