// Diagnoses a compiled module: holds its results against what rounding can explain.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "harness/cli/diagnose_what.h"
#include "harness/diagnose/write_report.h"
#include "harness/module/judge_module.h"

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
}  // namespace

void add_module_options(Options& options) {
  options.text("values", "its arguments and what it returned: safetensors of argument/0, result/0");
  options.number<double>("elementary-ulps", "the largest error of exp, log, tanh, ... in ulps", 8);
  options.one_of("flush", "whether denormals may be taken as zero", choices({"yes", "no"}), "yes");
  options.one_of("precision", "how operands of products may be rounded", precisions(), "f32");
  options.number<int>("samples", "draws for results whose proven radii are too wide; 0: no draws",
                      16);
  options.text("next R,..",
               "of arguments 0, 1, ... the result that is the new value, or -; such results are "
               "held against their change");
}

Result<int> diagnose_module(const Parsed& parsed, const std::string& module) {
  TWINRUN_ASSIGN(const int threads, threads_of(parsed));
  ModuleRequest request{module, parsed.get<std::string>("values")};
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
  if (!verdict.refused.empty()) return Error{verdict.refused, "", ""};
  Report report = report_of(verdict);
  report.command = command_line();
  if (parsed.has("out")) {
    report.directory = parsed.get<std::string>("out");
    TWINRUN_RETURN_IF_ERROR(write_report(report.directory, report));
  }
  return answer(report, parsed);
}

}  // namespace twinrun::cli
