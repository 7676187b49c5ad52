// Packs a module with its values, and judges them again.
#include "harness/bundle/module_bundle.h"

#include <fmt/format.h>

#include <filesystem>

#include "checkpoints/container/array.h"
#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/temporary.h"
#include "harness/bundle/package.h"
#include "harness/host/environment.h"
#include "harness/module/judge_module.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

std::string read_me(const Manifest& m, bool has_script) {
  return fmt::format(
      "{}\n\nclass {}{}{}\nmade by {}\n\n"
      "To judge the values again:\n\n"
      "  twinrun replay BUNDLE.zip\n\n{}"
      "module.txt          StableHLO or HLO text\n"
      "values.safetensors  what it was given (argument/0, ..) and returned (result/0, ..)\n"
      "original/           the diagnosis\n"
      "manifest.json       digests of these files, and the finding that must be reproduced\n",
      m.headline, to_string(m.verdict), m.finding.sentence.empty() ? "" : ", ", m.finding.sentence,
      m.twinrun,
      has_script ? "To compute it here, with the JAX of this Python:\n\n  python repro.py\n\n"
                 : "");
}

// The report of the module that lies in `folder`.
Result<Report> judge_in(const std::string& folder,
                        const std::map<std::string, std::string>& settings, int threads) {
  TWINRUN_ASSIGN(ModuleRequest request, request_of(settings));
  request.module = (fs::path(folder) / kModule).string();
  request.values = (fs::path(folder) / kValues).string();
  ThreadPool pool(threads);
  TWINRUN_ASSIGN(const ModuleVerdict verdict, judge_module(request, &pool));
  if (!verdict.refused.empty()) return Error{verdict.refused, request.module, ""};
  return report_of(verdict);
}

}  // namespace

Result<Bundle> bundle_module(const Report& report, const std::string& results,
                             const std::string& path, const BundleOptions& options) {
  if (options.anonymise)
    return Error{"a module and its values cannot be anonymised", "--anonymise", "leave it out"};
  const auto module = report.environment.find("module"), values = report.environment.find("values");
  if (module == report.environment.end() || values == report.environment.end())
    return Error{
        fmt::format("no equation is accused: the verdict is {}", to_string(report.verdict)),
        results, "a bundle of a JAX step is of wrong equations; else send this folder"};
  const PrivatePaths paths = PrivatePaths::of_this_process();
  const fs::path folder(results);  // relative names are of its files
  TWINRUN_ASSIGN(std::vector<std::byte> text, read_whole_file((folder / module->second).string()));
  TWINRUN_ASSIGN(std::vector<std::byte> arrays,
                 read_whole_file((folder / values->second).string()));
  if (!options.with_paths)
    text = bytes_of(paths.text({reinterpret_cast<const char*>(text.data()), text.size()}));
  TWINRUN_ASSIGN(const TemporaryFolder work, TemporaryFolder::make("bundle"));
  TWINRUN_RETURN_IF_ERROR(write_file_atomically((fs::path(work.path()) / kModule).string(), text));
  TWINRUN_RETURN_IF_ERROR(
      write_file_atomically((fs::path(work.path()) / kValues).string(), arrays));
  Package package;
  Manifest& m = package.manifest;
  TWINRUN_ASSIGN(const ModuleRequest request, request_of(report.environment));
  m.settings = settings_of(request);
  TWINRUN_ASSIGN(const Report again, judge_in(work.path(), m.settings, options.threads));
  if (again.verdict != report.verdict)
    return Error{fmt::format("gives {} now; the report says {}", to_string(again.verdict),
                             to_string(report.verdict)),
                 module->second, "the module or its values have changed: diagnose again"};
  const Report packed = options.with_paths ? report : paths.report(report);
  m.kind = "module";
  m.twinrun = version_text();
  m.headline = packed.headline;
  m.verdict = again.verdict;
  if (!again.findings.empty()) m.finding = again.findings.front();
  std::vector<std::pair<std::string_view, std::vector<std::byte>>> scripts;
  for (const std::string_view name : {kRepro, kReproExport}) {
    std::error_code ignored;
    if (report.kind != "JAX step" || !fs::exists(folder / name, ignored)) continue;
    TWINRUN_ASSIGN(auto bytes, read_whole_file((folder / name).string()));
    scripts.emplace_back(name, std::move(bytes));
  }
  package.add(kReadMe, bytes_of(read_me(m, !scripts.empty())));
  package.add(kModule, std::move(text));
  package.add(kValues, std::move(arrays));
  for (auto& [name, bytes] : scripts) package.add(name, std::move(bytes));
  package.add_original(packed);
  return package.write(path);
}

Result<Replay> replay_module(const Manifest& manifest, const std::string& folder, int threads) {
  Replay out;
  out.manifest = manifest;
  TWINRUN_ASSIGN(out.report, judge_in(folder, manifest.settings, threads));
  out.compare_finding("result");
  return out;
}

}  // namespace twinrun
