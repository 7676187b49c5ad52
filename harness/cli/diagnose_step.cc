// Diagnoses recorded steps: a script, which is recorded first, traces of one job, and two sides.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <set>

#include "checkpoints/container/temporary.h"
#include "harness/bisect/keys.h"
#include "harness/cli/diagnose_what.h"
#include "harness/cli/progress_printer.h"
#include "harness/diagnose/write_report.h"
#include "harness/module/compare_reports.h"
#include "harness/trace/compare_traces.h"
#include "harness/trace/side.h"
#include "reports/two_reports.h"

namespace twinrun::cli {
namespace {

namespace fs = std::filesystem;

// "train" of python train.py --epochs 1, of trace.twin and of trace.rank0.twin.
std::string name_of(const What& what) {
  const auto named = std::ranges::find_if(
      what.words, [](const std::string& word) { return word.ends_with(".py"); });
  const auto module = std::ranges::find(what.words, "-m");
  if (named == what.words.end() && module != what.words.end() && module + 1 != what.words.end())
    return *(module + 1);
  fs::path path(named == what.words.end() ? what.words.front() : *named);
  std::string name = path.stem().string();
  if (what.kind == WhatKind::kTraces) name = name.substr(0, name.rfind(".rank"));
  return name.empty() ? "step" : name;
}

// The command, with the Python of the environment where none is named.
std::vector<std::string> command_of(const What& what) {
  std::vector<std::string> words = what.words;
  if (std::ranges::none_of(words, is_python)) {
    const char* python = std::getenv("TWINRUN_PYTHON");
    words.insert(words.begin(), python != nullptr && *python != '\0' ? python : "python3");
  }
  return words;
}

Result<SideOptions> side_options(const Parsed& parsed, const StopFlag& stop,
                                 ProgressPrinter& printer) {
  SideOptions options;
  options.steps = parsed.get<int>("steps");
  options.first = parsed.get<int>("first");
  if (parsed.has("allow")) options.allowed = parsed.get<std::string>("allow");
  if (options.steps < 1 || options.first < 0)
    return Error{"--steps must be at least 1, --first at least 0", "", ""};
  options.stop = &stop;
  options.progress = &printer;
  return options;
}

// Records a script into `trace`; of several ranks, into a file of each.
Result<RecordedSide> recorded(const What& what, SideOptions options, const std::string& trace,
                              const TemporaryFolder& work) {
  options.folder = work.path();
  options.trace = trace;
  return record_side(command_of(what), options);
}

std::vector<std::string> allowed_by(const Parsed& parsed) {
  return parsed.has("allow") ? split_commas(parsed.get<std::string>("allow"))
                             : std::vector<std::string>();
}

struct Judged {
  std::vector<TraceVerdict> ranks;
  const TraceVerdict& gravest() const {
    static constexpr std::array kGravity = {VerdictClass::kNoise, VerdictClass::kInconclusive,
                                            VerdictClass::kProgram, VerdictClass::kEngineBug};
    return *std::ranges::max_element(ranks, {}, [](const TraceVerdict& v) {
      return std::ranges::find(kGravity, v.verdict()) - kGravity.begin();
    });
  }
};

// Ranks are judged one by one.
Result<Judged> judge_ranks(const Parsed& parsed, const std::vector<std::string>& paths,
                           ThreadPool& pool, const StopFlag& stop, ProgressPrinter& printer) {
  Judged out;
  std::set<int64_t> ranks;
  for (const std::string& path : paths) {
    TWINRUN_ASSIGN(TraceFile trace, read_trace(path, parsed.get<bool>("partial")));
    if (paths.size() > 1 && !ranks.insert(trace.rank).second)
      return Error{fmt::format("two traces are of rank {}", trace.rank), path,
                   "give the traces of one job, one of each rank"};
    trace.given_ranks = static_cast<int64_t>(paths.size());
    trace.allowed = allowed_by(parsed);
    out.ranks.push_back(judge_trace(trace, &pool, &stop, &printer));
    TWINRUN_RETURN_IF_ERROR(unchanged(trace));
    if (stop.load()) return Error{"interrupted", path, "", Error::Kind::kInterrupted};
  }
  return out;
}

// The report of the gravest rank, with a table of all.
Report report_of(const Judged& judged) {
  const TraceVerdict& gravest = judged.gravest();
  Report report = report_of(gravest);
  if (judged.ranks.size() == 1) return report;
  DetailTable t{"ranks",
                "Each rank by itself",
                fmt::format("What else stands here is of rank {}.", gravest.rank),
                {{"rank", "rank"}, {"verdict", "verdict"}, {"headline", "headline"}},
                {}};
  for (const TraceVerdict& v : judged.ranks)
    t.rows.push_back({v.rank, std::string(to_string(v.verdict())), v.headline()});
  report.details.insert(report.details.begin(), std::move(t));
  return report;
}

Result<int> finish(Report report, const std::string& folder, const Parsed& parsed) {
  report.command = command_line();
  report.directory = folder;
  for (Finding& f : report.findings) f.reproduce = report.command;
  TWINRUN_RETURN_IF_ERROR(write_report(folder, report));
  return answer(report, parsed);
}

// The keys that differ between the scenarios of two reports; none of reports of another kind.
std::vector<std::string> other_keys(const SideReport& a, const SideReport& b) {
  std::vector<std::string> out;
  if (a.scenario.empty() || b.scenario.empty()) return out;
  const auto x = parse_scenario(a.scenario, a.name), y = parse_scenario(b.scenario, b.name);
  if (!x || !y) return out;
  for (const bisect::KeyChange& c : bisect::key_changes(*x, *y))
    out.push_back(fmt::format("{} is {} on side A and {} on side B", c.key, c.from, c.to));
  return out;
}

Result<int> compare_reports(const Parsed& parsed, const std::string& a_name,
                            const std::string& a_report, const std::string& b_name,
                            const std::string& b_report, const std::string& folder) {
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  ThreadPool pool(threads);
  TWINRUN_ASSIGN(const auto a, read_side_report(a_report, a_name));
  TWINRUN_ASSIGN(const auto b, read_side_report(b_report, b_name));
  TwoReports both{a, b, {}, other_keys(a, b)};
  if (a.step && b.step) {
    TWINRUN_ASSIGN(both.values, twinrun::compare_reports(*a.step, *b.step, &pool));
  }
  return finish(twinrun::report_of(both), folder, parsed);
}

std::string report_file(const What& what) {
  std::error_code ignored;
  const std::string& path = what.words.front();
  return fs::is_directory(path, ignored) ? path + "/report.json" : path;
}

// A side's trace: one that exists, or that of a script, recorded into `trace`.
Result<RecordedSide> side(const What& what, const SideOptions& options, const std::string& trace,
                          const TemporaryFolder& work) {
  if (what.kind == WhatKind::kScript) return recorded(what, options, trace, work);
  if (what.words.size() != 1)
    return Error{"a side is one trace", what.words[1], "compare the ranks one by one"};
  return RecordedSide{what.words.front(), what.words.front(), ""};
}

Result<int> two_sides(const Parsed& parsed, const What& what, const What& against,
                      const std::string& folder) {
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  TWINRUN_ASSIGN(const SideOptions options, side_options(parsed, stop, printer));
  TWINRUN_ASSIGN(const TemporaryFolder work_a, TemporaryFolder::make("side"));
  TWINRUN_ASSIGN(const TemporaryFolder work_b, TemporaryFolder::make("side"));
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  TWINRUN_ASSIGN(const RecordedSide a, side(what, options, folder + "/a.twin", work_a));
  TWINRUN_ASSIGN(const RecordedSide b, side(against, options, folder + "/b.twin", work_b));
  if (a.trace.empty() && b.trace.empty())
    return compare_reports(parsed, a.name, a.report, b.name, b.report, folder);
  if (a.trace.empty() || b.trace.empty())
    return Error{"one side has a trace, the other only the report of a diagnosis",
                 a.trace.empty() ? a.name : b.name,
                 "give traces of `python -m twinrun watch` for both sides, or reports for both"};
  TWINRUN_ASSIGN(TraceFile trace_a, read_trace(a.trace, false));
  TWINRUN_ASSIGN(TraceFile trace_b, read_trace(b.trace, false));
  trace_a.allowed = trace_b.allowed = allowed_by(parsed);
  ThreadPool pool(threads);
  TwoSides both = compare_traces(trace_a, trace_b, &pool, &stop, &printer);
  if (stop.load()) return Error{"interrupted", "", "", Error::Kind::kInterrupted};
  TWINRUN_RETURN_IF_ERROR(unchanged(trace_a));
  TWINRUN_RETURN_IF_ERROR(unchanged(trace_b));
  both.a_name = a.name;
  both.b_name = b.name;
  TWINRUN_RETURN_IF_ERROR(write_report(folder + "/a", twinrun::report_of(both.a)));
  TWINRUN_RETURN_IF_ERROR(write_report(folder + "/b", twinrun::report_of(both.b)));
  return finish(twinrun::report_of(both), folder, parsed);
}

}  // namespace

void add_step_options(Options& options) {
  options.number<int>("steps", "how many training steps of a script to record", 4);
  options.number<int>("first", "the first of them, from 0", 0);
  options.flag("partial", "judge the complete calls of a trace that was cut short");
  options.text(
      "allow NAMES",
      "functions (autograd.Function, custom_vjp) and hooks, between commas, that are meant "
      "to give another gradient than the derivative");
}

Result<int> diagnose_reports(const Parsed& parsed, const What& a, const What& b) {
  if (a.kind != b.kind)
    return Error{"one side is a finished diagnosis, the other is not", b.words.front(),
                 "give two finished diagnoses, or two scripts or traces"};
  return compare_reports(parsed, a.words.front(), report_file(a), b.words.front(), report_file(b),
                         results_folder(parsed, name_of(a) + "-and-" + name_of(b)));
}

Result<int> diagnose_step(const Parsed& parsed, const What& what, const What* against) {
  const std::string folder = results_folder(parsed, name_of(what) + (against ? "-sides" : ""));
  if (against != nullptr) return two_sides(parsed, what, *against, folder);
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  std::vector<std::string> paths = what.words;
  if (what.kind == WhatKind::kScript) {
    TWINRUN_ASSIGN(SideOptions options, side_options(parsed, stop, printer));
    TWINRUN_ASSIGN(const TemporaryFolder work, TemporaryFolder::make("recording"));
    options.report = folder;
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    const std::string trace = folder + "/trace.twin";
    fs::remove(trace, ignored);
    TWINRUN_ASSIGN(const What earlier, what_of({trace}));  // of ranks, if there are any
    for (const std::string& path : earlier.words) fs::remove(path, ignored);
    TWINRUN_ASSIGN(const RecordedSide made, recorded(what, options, trace, work));
    if (made.trace.empty()) return show_report(made.report, parsed);
    TWINRUN_ASSIGN(const What traces, what_of({made.trace}));
    paths = traces.words;
  }
  ThreadPool pool(threads);
  TWINRUN_ASSIGN(const Judged judged, judge_ranks(parsed, paths, pool, stop, printer));
  if (judged.ranks.size() > 1) {
    for (const TraceVerdict& v : judged.ranks)
      TWINRUN_RETURN_IF_ERROR(
          write_report(fmt::format("{}/rank{}", folder, v.rank), twinrun::report_of(v)));
  }
  return finish(report_of(judged), folder, parsed);
}

}  // namespace twinrun::cli
