// Packs the accused calls of a recorded step, and judges them again.
#include "harness/bundle/step_bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "harness/bundle/package.h"
#include "harness/host/environment.h"
#include "harness/trace/cut_trace.h"
#include "harness/trace/judge_trace.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;
constexpr size_t kMostCalls = 8;

// The first call of each operation that is accused.
std::vector<int64_t> accused_calls(const Report& report) {
  std::vector<int64_t> calls;
  std::set<std::string> ops;
  for (const Finding& f : report.findings) {
    if (f.call && f.verdict == VerdictClass::kEngineBug && calls.size() < kMostCalls &&
        ops.insert(f.op).second)
      calls.push_back(*f.call);
  }
  std::ranges::sort(calls);
  return calls;
}

// Beside the report, where a script was recorded; else where it was when it was diagnosed.
std::string trace_of(const Report& report, const std::string& results) {
  std::error_code ignored;
  const std::string beside = (fs::path(results) / kTrace).string();
  if (fs::exists(beside, ignored)) return beside;
  const auto at = report.environment.find("trace");
  return at == report.environment.end() ? beside : at->second;
}

std::string read_me(const Manifest& m, size_t calls) {
  return fmt::format(
      "{}\n\nclass {}, {}\nmade by {}\n\n"
      "To judge the recorded call{} again:\n\n"
      "  twinrun replay BUNDLE.zip\n\n"
      "To compute {} here, with the PyTorch of this Python, and judge that (the Python package is "
      "in\n"
      "the wheel, and in adapters/ of the source tree):\n\n"
      "  python -m twinrun replay BUNDLE.zip\n\n"
      "trace.twin     {} with all that {} read and returned (docs/reference/trace-format.md)\n"
      "original/      the diagnosis\n"
      "manifest.json  digests of these files, and the finding that must be reproduced\n",
      m.headline, to_string(m.verdict), m.finding.sentence, m.twinrun, calls == 1 ? "" : "s",
      calls == 1 ? "it" : "them",
      calls == 1 ? "the call" : fmt::format("the first call of each of {} operations", calls),
      calls == 1 ? "it" : "they");
}

}  // namespace

Result<Bundle> bundle_step(const Report& report, const std::string& results,
                           const std::string& path, const BundleOptions& options) {
  const std::vector<int64_t> calls = accused_calls(report);
  if (calls.empty())
    return Error{fmt::format("no call is accused: the verdict is {}", to_string(report.verdict)),
                 results, "a bundle of a recorded step is of wrong calls; else attach the trace"};
  TWINRUN_ASSIGN(const TraceFile trace, read_trace(trace_of(report, results), false));
  TWINRUN_ASSIGN(const std::string cut, cut_trace(trace, calls));
  TWINRUN_RETURN_IF_ERROR(unchanged(trace));
  for (const int64_t call : calls) {
    const auto of = std::ranges::find(report.findings, call,
                                      [](const Finding& f) { return f.call.value_or(-1); });
    if (of->op != trace.calls[static_cast<size_t>(call)].op)
      return Error{fmt::format("is not the trace of this report: call {} is {}", call,
                               trace.calls[static_cast<size_t>(call)].op),
                   trace.path, "diagnose it again"};
  }
  const PrivatePaths paths = PrivatePaths::of_this_process();
  const Report packed = options.with_paths ? report : paths.report(report);
  Package package;
  Manifest& m = package.manifest;
  m.kind = report.kind;
  m.twinrun = version_text();
  m.headline = packed.headline;
  m.verdict = report.verdict;
  m.finding = packed.findings.front();
  m.finding.step = 0;  // of the trace that is packed
  package.add(kReadMe, bytes_of(read_me(m, calls.size())));
  package.add(kTrace, bytes_of(cut));
  if (!options.anonymise) package.add_original(packed);
  TWINRUN_ASSIGN(Bundle out, package.write(path));
  out.notes.push_back(fmt::format("{} of {} calls, {} of {} bytes of the trace", calls.size(),
                                  trace.calls.size(), cut.size(), trace.bytes));
  return out;
}

Result<Replay> replay_step(const Manifest& manifest, const std::string& trace, int threads,
                           const StopFlag* stop) {
  TWINRUN_ASSIGN(const TraceFile read, read_trace(trace, false));
  ThreadPool pool(threads);
  Replay out;
  out.manifest = manifest;
  out.report = report_of(judge_trace(read, &pool, stop));
  out.interrupted = stop != nullptr && stop->load();
  out.compare_finding("operation");
  return out;
}

}  // namespace twinrun
