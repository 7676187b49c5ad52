// Diagnoses a compiled module: holds its results against what rounding can explain.
#include <fmt/format.h>

#include <filesystem>
#include <map>

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
  std::map<std::string, std::string> settings = {
      {"elementary_ulps", fmt::format("{}", parsed.get<double>("elementary-ulps"))},
      {"flush", parsed.get<std::string>("flush")},
      {"precision", parsed.get<std::string>("precision")},
      {"samples", std::to_string(parsed.get<int>("samples"))}};
  if (parsed.has("next")) settings["next"] = parsed.get<std::string>("next");
  TWINRUN_ASSIGN(ModuleRequest request, request_of(settings));
  request.module = module;
  request.values = parsed.get<std::string>("values");
  ThreadPool pool(threads);
  TWINRUN_ASSIGN(const ModuleVerdict verdict, judge_module(request, &pool));
  if (!verdict.refused.empty()) return Error{verdict.refused, "", ""};
  Report report = report_of(verdict);
  report.command = command_line();
  // What `twinrun bundle` needs to judge it again.
  report.environment = settings_of(request);
  report.environment["module"] = std::filesystem::absolute(module).string();
  report.environment["values"] = std::filesystem::absolute(request.values).string();
  if (parsed.has("out")) {
    report.directory = parsed.get<std::string>("out");
    TWINRUN_RETURN_IF_ERROR(write_report(report.directory, report));
  }
  return answer(report, parsed);
}

}  // namespace twinrun::cli
