// twinrun judge: holds every call of a recorded training step against its definition, or the results
// of a compiled module against what rounding can explain.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <set>

#include "harness/cli/options.h"
#include "harness/cli/progress_printer.h"
#include "harness/module/judge_module.h"
#include "harness/trace/judge_trace.h"

namespace twinrun::cli {
namespace {

// The words of tpu.precision, and that of GPUs.
const std::vector<Choice>& precisions() {
  static const std::vector<Choice> all = {{"f32"},
                                          {"default", "one pass of bf16"},
                                          {"high", "three"},
                                          {"highest", "six"},
                                          {"tf32", "as a GPU"}};
  return all;
}
Result<int> judge_compiled(const Parsed& parsed, int threads) {
  if (!parsed.has("values"))
    return Error{"--module needs --values", "", "--values VALUES.safetensors"};
  ModuleRequest request{parsed.get<std::string>("module"), parsed.get<std::string>("values")};
  request.may.elementary_ulps = parsed.get<double>("elementary-ulps");
  if (!(request.may.elementary_ulps >= 0) || request.may.elementary_ulps > 1e6)
    return Error{"--elementary-ulps: allowed: 0 to 1000000", "", ""};
  request.may.flush = parsed.get<std::string>("flush") == "yes";
  set_products(parsed.get<std::string>("precision"), request.may);
  const bool has_next = parsed.has("next");
  for (const std::string& word :
       has_next ? split_commas(parsed.get<std::string>("next")) : std::vector<std::string>{}) {
    int64_t result = -1;
    const auto [end, failed] = std::from_chars(word.data(), word.data() + word.size(), result);
    if (word != "-" && (failed != std::errc{} || end != word.data() + word.size() || result < 0))
      return Error{"--next: a comma-separated list of indices of results, or -", word,
                   "--next 0,1,- for results that are the new values of arguments 0 and 1"};
    request.next.push_back(word == "-" ? -1 : result);
  }
  request.samples = parsed.get<int>("samples");
  if (request.samples != 0 && (request.samples < kSamples || request.samples > 1000))
    return Error{fmt::format("--samples: allowed: 0, and {} to 1000", kSamples), "", ""};
  ThreadPool pool(threads);
  TWINRUN_ASSIGN(const ModuleVerdict verdict, judge_module(request, &pool));
  const bool json = parsed.get<bool>("json");
  if (json) print_document(module_json(verdict));
  if (!verdict.refused.empty()) {
    if (!json) return Error{verdict.refused, "", ""};
    return kExitUsage;
  }
  if (!json) print_text(module_text(verdict));
  const std::string word = verdict.word();
  return word == "ENGINE_BUG" ? 20 : word == "NOISE" ? 0 : kExitUnavailable;
}

// The traces of all ranks of a job: those that are named, or NAME.rank*.twin of NAME.twin.
std::vector<std::string> traces_of(const std::vector<std::string>& named) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  if (named.size() != 1 || fs::exists(named[0], ignored)) return named;
  const fs::path whole(named[0]);
  const std::string begin = whole.stem().string() + ".rank", end = whole.extension().string();
  std::map<int64_t, std::string> found;
  for (const auto& entry : fs::directory_iterator(
           whole.has_parent_path() ? whole.parent_path() : fs::path("."), ignored)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with(begin) || !name.ends_with(end) ||
        name.size() <= begin.size() + end.size())
      continue;
    const std::string number = name.substr(begin.size(), name.size() - begin.size() - end.size());
    if (number.size() < 10 && number.find_first_not_of("0123456789") == std::string::npos)
      found[std::stoll(number)] = (whole.parent_path() / name).string();
  }
  std::vector<std::string> all;
  for (auto& [rank, path] : found) all.push_back(std::move(path));
  return all.empty() ? named : all;
}

// Ranks are judged one by one; the first of the gravest verdicts is shown.
Result<int> judge_ranks(const Parsed& parsed, int threads) {
  const std::vector<std::string> paths =
      traces_of(parsed.get<std::vector<std::string>>("?TRACE.."));
  const bool json = parsed.get<bool>("json");
  const std::string out = parsed.has("out") ? parsed.get<std::string>("out") : "";
  ThreadPool pool(threads);
  const StopFlag& stop = install_stop_flag();
  ProgressPrinter printer(parsed.get<bool>("quiet"), false);
  std::vector<TraceVerdict> verdicts;
  std::set<int64_t> ranks;
  for (const std::string& path : paths) {
    TWINRUN_ASSIGN(TraceFile trace, read_trace(path, parsed.get<bool>("partial")));
    if (paths.size() > 1 && !ranks.insert(trace.rank).second)
      return Error{fmt::format("two traces are of rank {}", trace.rank), path,
                   "give the traces of one job, one of each rank"};
    trace.given_ranks = static_cast<int64_t>(paths.size());
    verdicts.push_back(judge_trace(trace, &pool, &stop, &printer));
    TWINRUN_RETURN_IF_ERROR(unchanged(trace));
    if (stop.load()) return Error{"interrupted", path, "", Error::Kind::kInterrupted};
  }
  static constexpr int kGravity[] = {0, kExitUnavailable, 15, 20};
  const auto gravity = [&](const TraceVerdict& v) {
    return std::ranges::find(kGravity, v.exit_code()) - std::begin(kGravity);
  };
  const TraceVerdict& gravest = *std::ranges::max_element(verdicts, {}, gravity);
  if (!out.empty()) {
    TWINRUN_RETURN_IF_ERROR(write_pages(out, trace_html(gravest), trace_json(gravest)));
    for (const TraceVerdict& v : verdicts) {
      if (verdicts.size() > 1)
        TWINRUN_RETURN_IF_ERROR(
            write_pages(fmt::format("{}/rank{}", out, v.rank), trace_html(v), trace_json(v)));
    }
  }
  if (json) {
    print_document(trace_json(gravest));
    return gravest.exit_code();
  }
  if (verdicts.size() > 1) {
    for (const TraceVerdict& v : verdicts)
      print_text(fmt::format("rank {}: {}  {}\n", v.rank, v.word(), v.headline()));
    print_text(fmt::format("\nrank {}:\n", gravest.rank));
  }
  print_text(trace_text(gravest, parsed.get<bool>("ops")));
  if (!out.empty()) print("\n{}: report.html, report.json\n", out);
  return gravest.exit_code();
}

}  // namespace

Result<int> judge_verb(const Args& args) {
  Options options;
  options.text("out,o", "folder for report.html, a page to read, and report.json");
  options.flag("partial", "judge the complete calls of a trace that was cut short");
  options.flag("ops", "list every operation with its worst ratio of error to bound");
  options.flag("json", "one JSON document on stdout");
  options.text("module", "judge a compiled module instead: its HLO or StableHLO text");
  options.text("values", "its arguments and what it returned: safetensors of argument/0, result/0");
  options.number<double>("elementary-ulps",
                         "--module: the largest error of exp, log, tanh, ... in ulps", 8);
  options.one_of("flush", "--module: whether denormals may be taken as zero",
                 choices({"yes", "no"}), "yes");
  options.one_of("precision", "--module: how operands of products may be rounded", precisions(),
                 "f32");
  options.number<int>(
      "samples", "--module: draws for results whose proven radii are too wide; 0: no draws", 16);
  options.text("next",
               "--module: of arguments 0, 1, ... the result that is the new value, or -; such "
               "results are held against their change");
  options.number<int>("threads", "threads to use", 2);
  options.flag("quiet,q", "print no progress");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args,
                       "twinrun judge TRACE.. [-o DIR] [OPTIONS]\n"
                       "       twinrun judge --module MODULE --values VALUES [OPTIONS]",
                       "twinrun judge trace.twin -o judged", options, {"?TRACE.."}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  if (parsed.has("module") == parsed.has("?TRACE.."))
    return Error{"either TRACE or --module is needed", "", "twinrun judge --help"};
  if (parsed.has("module")) return judge_compiled(parsed, threads);
  return judge_ranks(parsed, threads);
}

}  // namespace twinrun::cli
