// Packs the accused calls of a recorded step, or the whole recording where the step itself is
// wrong, and judges that again.
#include "harness/bundle/step_bundle.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "checkpoints/container/array.h"
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

// `calls`: "the call"; "": the whole recording.
std::string read_me(const Manifest& m, const std::string& calls) {
  std::string out = fmt::format(
      "{}\n\nclass {}, {}\nmade by {}\n\nTo judge {} again:\n\n  twinrun replay BUNDLE.zip\n\n",
      m.headline, to_string(m.verdict), m.finding.sentence, m.twinrun,
      calls.empty() ? "the recorded steps" : calls);
  if (!calls.empty())
    out += fmt::format(
        "To compute {} here, with the PyTorch of this Python, and judge that (the Python package "
        "is in\nthe wheel, and in adapters/ of the source tree):\n\n"
        "  python -m twinrun replay BUNDLE.zip\n\n",
        calls);
  return out +
         fmt::format(
             "trace.twin     {} (docs/reference/trace-format.md)\n"
             "original/      the diagnosis\n"
             "manifest.json  digests of these files, and the finding that must be reproduced\n",
             calls.empty() ? "the whole recording: batches, weights, paths of the script's files"
                           : calls + " with all that was read and returned");
}

// The trace of nothing but `calls`.
Result<std::string> accused_part(const TraceFile& trace, const Report& report,
                                 const std::vector<int64_t>& calls) {
  TWINRUN_ASSIGN(std::string cut, cut_trace(trace, calls));
  for (const int64_t call : calls) {
    const auto of = std::ranges::find(report.findings, call,
                                      [](const Finding& f) { return f.call.value_or(-1); });
    if (of->op != trace.calls[static_cast<size_t>(call)].op)
      return Error{fmt::format("is not the trace of this report: call {} is {}", call,
                               trace.calls[static_cast<size_t>(call)].op),
                   trace.path, "diagnose it again"};
  }
  return cut;
}

}  // namespace

Result<Bundle> bundle_step(const Report& report, const std::string& results,
                           const std::string& path, const BundleOptions& options) {
  const std::vector<int64_t> calls = accused_calls(report);
  // What a step means is read off all of it: no part of the recording shows it alone.
  const bool whole = calls.empty() && report.verdict == VerdictClass::kProgram;
  if (calls.empty() && !whole)
    return Error{fmt::format("nothing is accused: the verdict is {}", to_string(report.verdict)),
                 results, "a bundle of a recorded step is of a finding; else attach the trace"};
  if (whole && options.anonymise)
    return Error{"the recording of a whole step cannot be anonymised", "--anonymise",
                 "leave it out; the bundle then has the batches and weights of the recorded steps"};
  TWINRUN_ASSIGN(const TraceFile trace, read_trace(trace_of(report, results), false));
  std::vector<std::byte> bytes;
  if (whole) {
    if (std::cmp_greater(trace.bytes, kLargestBundle))
      return Error{fmt::format("has {} bytes; a bundle holds {}", trace.bytes, kLargestBundle),
                   trace.path, "record fewer steps (--steps) or smaller batches"};
    TWINRUN_ASSIGN(bytes, read_whole_file(trace.path));
  } else {
    TWINRUN_ASSIGN(const std::string cut, accused_part(trace, report, calls));
    bytes = bytes_of(cut);
  }
  TWINRUN_RETURN_IF_ERROR(unchanged(trace));
  const PrivatePaths paths = PrivatePaths::of_this_process();
  const Report packed = options.with_paths ? report : paths.report(report);
  Package package;
  Manifest& m = package.manifest;
  m.kind = report.kind;
  m.twinrun = version_text();
  m.headline = packed.headline;
  m.verdict = report.verdict;
  m.finding = packed.findings.front();
  if (!whole) m.finding.step = 0;  // of the trace that is packed
  package.add(kReadMe,
              bytes_of(read_me(
                  m, whole ? ""
                     : calls.size() == 1
                         ? "the call"
                         : fmt::format("the first call of each of {} operations", calls.size()))));
  const size_t size = bytes.size();
  package.add(kTrace, std::move(bytes));
  if (!options.anonymise) package.add_original(packed);
  TWINRUN_ASSIGN(Bundle out, package.write(path));
  out.notes.push_back(
      whole ? fmt::format(
                  "the whole recording, {} bytes: it holds the script's batches and weights, and "
                  "the paths of its files",
                  size)
            : fmt::format("{} of {} calls, {} of {} bytes of the trace", calls.size(),
                          trace.calls.size(), size, trace.bytes));
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
  const Finding first = out.report.findings.empty() ? Finding{} : out.report.findings.front();
  out.row("cause", manifest.finding.cause, first.cause);
  return out;
}

}  // namespace twinrun
