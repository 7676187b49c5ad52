// Packs a diagnosis: reduces the scenario, writes the subject's states, and zips everything with a
// manifest.
#include "harness/bundle/bundle.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "checkpoints/container/array.h"
#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/temporary.h"
#include "checkpoints/container/zip.h"
#include "harness/bundle/manifest.h"
#include "harness/bundle/module_bundle.h"
#include "harness/bundle/own_data.h"
#include "harness/bundle/own_program.h"
#include "harness/bundle/package.h"
#include "harness/bundle/private_paths.h"
#include "harness/bundle/recorded_runs.h"
#include "harness/bundle/step_bundle.h"
#include "harness/experiment/engines.h"
#include "harness/experiment/experiment.h"
#include "harness/experiment/imported.h"
#include "harness/host/environment.h"
#include "harness/run/engine_setup.h"
#include "harness/run/run.h"
#include "program/graph/program.h"

namespace twinrun {
namespace {

namespace fs = std::filesystem;

std::string words(const AskedOf& asked) {
  std::string out = fmt::format("--subject '{}'", asked.subject);
  if (asked.baseline != "cpu") out += fmt::format(" --baseline '{}'", asked.baseline);
  for (const std::string& fault : asked.faults) out += fmt::format(" --fault '{}'", fault);
  return out + (asked.quick ? " --quick" : "");
}

// The options with which the unpacked program is diagnosed.
std::string words_of_program(const Scenario& s) {
  static const std::pair<std::string ProgramFiles::*, const char*> kOptions[] = {
      {&ProgramFiles::program, "--program"},    {&ProgramFiles::binding, " --binding"},
      {&ProgramFiles::state, " --state"},       {&ProgramFiles::batch, " --batch"},
      {&ProgramFiles::held_out, " --held-out"}, {&ProgramFiles::whole, " --whole"}};
  std::string out;
  for (const auto& [file, option] : kOptions) {
    if (!(s.program_files.*file).empty())
      out += fmt::format("{} {}", option, fs::path(s.program_files.*file).filename().string());
  }
  return out + fmt::format(" --set train.steps={} --set tpu.precision={}", s.train.steps,
                           s.tpu.precision);
}

std::string reproduce_text(const Manifest& m, const Scenario& scenario, bool anonymised) {
  const bool imported = !scenario.imported.empty();
  std::string out = fmt::format(
      "{}\n\nclass {}{}{}\nmade by {}\n\n"
      "To prove it on another machine:\n\n"
      "  twinrun replay BUNDLE.zip{}\n\n"
      "exit status 0: the same bits and the same finding; 1: something differs, and the output "
      "says what.\n"
      "By hand, in the folder where the bundle was unpacked:\n\n"
      "  twinrun diagnose {} {}{}\n",
      m.headline, to_string(m.verdict),
      m.finding.op.empty() ? "" : fmt::format(", op {}", m.finding.op),
      m.finding.step ? fmt::format(", first at step {}", *m.finding.step) : "", m.twinrun,
      is_foreign_engine(m.asked.subject) ? " --allow-exec" : "",
      imported ? words_of_program(scenario) : "scenario.toml",
      m.own_data ? "--set data.dir=. " : "", words(m.asked));
  if (!m.reduction.empty()) {
    out += "\nReduced from the original, each change with the same finding:\n";
    for (const std::string& change : m.reduction) out += fmt::format("  {}\n", change);
  }
  for (const EngineFile& file : m.engine_files)
    out += fmt::format("\n{}  is the engine's '{}'\n", file.member, file.word);
  if (is_foreign_engine(m.asked.subject))
    out +=
        "\nThe engine is third-party code; what its scripts import from elsewhere is not "
        "included.\n";
  out += fmt::format(
      "\nscenario.toml  what is trained, every key\n{}{}"
      "program.txt    the program, {} core{}, one op a line\n{}"
      "manifest.json  digests of these files, and of the results that must be reproduced\n",
      imported     ? "step.*         the imported program: text, binding, initial state, batches\n"
      : m.own_data ? fmt::format("data.npz       its batches, in order{}\n",
                                 anonymised ? "; noise, not the original's" : "")
                   : "",
      imported || m.own_data ? "init.h5        the initial checkpoint\n"
                               "before.h5      the state of the subject before the first wrong "
                               "step\n"
                             : "",
      scenario.tpu.cores, scenario.tpu.cores == 1 ? "" : "s",
      anonymised ? "" : "original/      the diagnosis it was made from\n");
  return out;
}

// Packs the scripts of foreign engines, lists them in the manifest and adds notes about them.
std::vector<ZipMember> packed_engines(const DiagnoseOptions& asked, bool anonymise, Manifest& m,
                                      std::vector<std::string>& notes) {
  std::vector<ZipMember> members;
  for (const std::string& engine : {asked.subject, asked.baseline}) {
    if (!is_foreign_engine(engine)) continue;
    PackedEngine packed = anonymise ? PackedEngine{} : pack_engine(engine);
    for (size_t i = 0; i < packed.files.size(); ++i) {
      const EngineFile& file = packed.files[i];
      if (std::ranges::find(members, file.member, &ZipMember::name) != members.end()) {
        if (std::ranges::find(m.engine_files, file.word, &EngineFile::word) == m.engine_files.end())
          packed.left_out.push_back(file.word + " (another file has its name)");
        continue;
      }
      notes.push_back(fmt::format("packed: {}, which is {}", file.member, file.word));
      m.engine_files.push_back(file);
      members.push_back(std::move(packed.members[i]));
    }
    const std::string left_out = fmt::format("{}", fmt::join(packed.left_out, ", "));
    notes.push_back(fmt::format(
        "not packed: {}{}; attach what '{}' needs, or say how it is installed",
        left_out.empty() ? "" : left_out + ", ",
        packed.files.empty() ? "the engine itself" : "what the scripts import from elsewhere",
        engine));
  }
  return members;
}

void leave_out_paths(const PrivatePaths& paths, Manifest& m) {
  m.headline = paths.text(m.headline);
  m.asked.subject = paths.engine(m.asked.subject);
  m.asked.baseline = paths.engine(m.asked.baseline);
  for (EngineFile& file : m.engine_files) file.word = paths.word(file.word);
  for (std::string& change : m.reduction) change = paths.text(change);
}

// The text of an imported program names the files that it was made from. It has been copied to the
// file `program`; that it still means the same is checked when the experiment is made from it.
Status leave_out_paths(const PrivatePaths& paths, const std::string& program) {
  TWINRUN_ASSIGN(const auto bytes, read_whole_file(program));
  return write_file_atomically(
      program, paths.text({reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
}

// Writes the initial state, and the subject's state before step `bad`, to files in `folder`.
Status write_states(const Experiment& e, const DiagnoseOptions& options, int64_t bad,
                    const std::string& folder) {
  const Scenario& scenario = e.scenario;
  TWINRUN_ASSIGN(const EngineSetup setup, set_up(e, {.engine = options.subject,
                                                     .cores = scenario.tpu.cores,
                                                     .threads = options.threads,
                                                     .faults = options.faults}));
  const States initial = initial_states(e, setup.program);
  const auto write = [&](std::string_view name, const States& states, int64_t step) {
    Checkpoint c = to_checkpoint(setup.program, states, scenario, step);
    c.scenario_digest = scenario_digest(scenario).hex();
    return write_checkpoint((fs::path(folder) / name).string(), c);
  };
  TWINRUN_RETURN_IF_ERROR(write(kInitial, initial, 0));
  if (bad == 0) return write(kBefore, initial, 0);
  RunOptions run;
  run.steps = bad;
  run.evaluate = false;
  run.digest_states = false;
  TWINRUN_ASSIGN(const RunResult before, train(e, setup.program, *setup.backend, run));
  return write(kBefore, before.states, bad);
}

// A step whose user divided it over devices, diagnosed as the files that its diagnosis left: the
// step and the step on one device.
Result<Report> sharding_again(const std::string& results, const BundleOptions& options,
                              Progress* progress, const StopFlag* stop) {
  const fs::path folder(results);
  ExperimentSource source;
  source.program.program = (folder / "sharded.mlir").string();
  source.program.whole = (folder / "whole.mlir").string();
  for (const std::string& file : {source.program.program, source.program.whole}) {
    std::error_code ignored;
    if (!fs::exists(file, ignored))
      return Error{"is not there, so the step cannot be diagnosed elsewhere", file,
                   "send this folder: no cause is known, or the notes of the report say why it was "
                   "not looked for"};
  }
  TWINRUN_ASSIGN(const Experiment experiment, open_experiment(source, {}));
  DiagnoseOptions how;
  how.subject = "cpu";
  how.quick = true;
  how.threads = options.threads;
  TWINRUN_ASSIGN(const TemporaryFolder work, TemporaryFolder::make("bundle"));
  how.directory = work.path();
  TWINRUN_ASSIGN(Diagnosis again, diagnose(experiment.scenario, how, progress, stop));
  if (again.report.verdict != VerdictClass::kSharding && !again.interrupted)
    return Error{fmt::format("{} as an imported step, and SHARDING as JAX runs it",
                             to_string(again.report.verdict)),
                 source.program.program, "send this folder"};
  return std::move(again.report);
}

// `original`: what a person read; `diagnosed`: of the same step, what a replay repeats.
Result<Bundle> bundle_scenario(const Report& diagnosed, const Report& original,
                               const std::string& results, const std::string& path,
                               const BundleOptions& options, Progress* progress,
                               const StopFlag* stop) {
  const std::string report_path = (fs::path(results) / "report.json").string();
  if (diagnosed.asked.subject.empty())
    return Error{"does not record how the diagnosis was run: it is from an older twinrun",
                 report_path, "diagnose again"};
  TWINRUN_ASSIGN(Scenario scenario, parse_scenario(diagnosed.scenario_toml, report_path));
  forget_cache_file(scenario);
  TWINRUN_RETURN_IF_ERROR(find_program(options.program, diagnosed.asked.files, scenario));
  const bool imported = !scenario.imported.empty();
  if (imported && options.anonymise)
    return Error{"the text of a program cannot be anonymised", "--anonymise",
                 "leave it out; the bundle then has the program, its state and its batches"};
  TWINRUN_ASSIGN(DiagnoseOptions asked, asked_again(diagnosed.asked, options.threads));
  TWINRUN_ASSIGN(const TemporaryFolder work, TemporaryFolder::make("bundle"));

  const PrivatePaths paths = PrivatePaths::of_this_process();
  Bundle out;
  TWINRUN_RETURN_IF_ERROR(check_recorded_runs(original, results, out.notes));
  Report report = diagnosed;
  const bool fault =
      diagnosed.verdict == VerdictClass::kEngineBug || diagnosed.verdict == VerdictClass::kSharding;
  bool own_data = false;
  const bool foreign = is_foreign_engine(asked.subject) || is_foreign_engine(asked.baseline);
  const bool wanted = options.anonymise ? options.reduction != BundleOptions::Reduction::kNever
                      : foreign         ? options.reduction == BundleOptions::Reduction::kAlways
                                        : options.reduction != BundleOptions::Reduction::kNever;
  if (fault && wanted && !diagnosed.findings.empty()) {
    TWINRUN_ASSIGN(
        out.reduced,
        reduce(scenario, asked, diagnosed.findings.front(),
               {.folder = work.path(), .noise = options.anonymise, .max_tried = options.max_tried},
               progress, stop));
    if (out.reduced->interrupted) {
      out.interrupted = true;
      return out;
    }
    scenario = out.reduced->scenario;
    asked = out.reduced->options;
    report = out.reduced->report;
    own_data = true;
  } else if (options.anonymise) {
    return Error{fmt::format("nothing to reduce: the verdict is {}{}", to_string(diagnosed.verdict),
                             fault ? " and --no-reduction was given" : ""),
                 "--anonymise",
                 "only a reduced bundle can be anonymised, and only a sharding or engine bug "
                 "finding can be reduced"};
  }
  if (imported && !own_data) {
    TWINRUN_ASSIGN(scenario, with_own_program(scenario, work.path(), /*only_used=*/false));
  }
  if (own_data) scenario.data.dir = ".";
  std::vector<ZipMember> scripts;
  if (foreign && fault && !wanted && options.reduction == BundleOptions::Reduction::kOfOurs)
    out.notes.emplace_back(
        "not reduced: the engine is third-party code, which each try would start again "
        "(--reduction does so)");

  Package package;
  Manifest& m = package.manifest;
  m.twinrun = version_text();
  m.headline = report.headline;
  m.asked = diagnosed.asked;
  m.asked.quick = asked.quick;
  m.own_data = own_data && !imported;
  m.verdict = report.verdict;
  if (!report.findings.empty()) m.finding = report.findings.front();
  m.runs = expected_runs(report);
  if (out.reduced) m.reduction = out.reduced->log;
  if (foreign) scripts = packed_engines(asked, options.anonymise, m, out.notes);
  Scenario shown = scenario;  // as the bundle has it
  if (!options.with_paths) {
    shown = paths.scenario(scenario);
    leave_out_paths(paths, m);
    for (const auto text : {&ProgramFiles::program, &ProgramFiles::whole}) {
      if (!(scenario.program_files.*text).empty())
        TWINRUN_RETURN_IF_ERROR(leave_out_paths(paths, scenario.program_files.*text));
    }
  }

  const auto add_file = [&](std::string_view name) -> Status {
    TWINRUN_ASSIGN(auto bytes, read_whole_file((fs::path(work.path()) / name).string()));
    package.add(name, std::move(bytes));
    return Ok{};
  };
  for (ZipMember& script : scripts) package.add(script.name, std::move(script.bytes));
  Scenario here = scenario;  // its data lies in the work folder
  if (own_data) here.data.dir = work.path();
  TWINRUN_ASSIGN(const Experiment e, make_experiment(here));
  package.add(kReadMe, bytes_of(reproduce_text(m, shown, options.anonymise)));
  package.add(kScenario, bytes_of(resolved_toml(shown)));
  package.add(kProgram,
              bytes_of(to_text(scenario.tpu.cores > 1 ? e.sharded(e.sharding)
                                                      : e.whole(Experiment::Stack::kTpu))));
  for (const auto& [name, file] : kProgramMembers) {
    if (!(scenario.program_files.*file).empty()) TWINRUN_RETURN_IF_ERROR(add_file(name));
  }
  for (const std::string_view name : kBesideWhole) {
    std::error_code ignored;
    if (imported && fs::exists(fs::path(work.path()) / name, ignored))
      TWINRUN_RETURN_IF_ERROR(add_file(name));
  }
  if (m.own_data) TWINRUN_RETURN_IF_ERROR(add_file(kOwnData));
  if (own_data) {
    TWINRUN_RETURN_IF_ERROR(write_states(e, asked, m.finding.step.value_or(0), work.path()));
    TWINRUN_RETURN_IF_ERROR(add_file(kInitial));
    TWINRUN_RETURN_IF_ERROR(add_file(kBefore));
  }
  if (!options.anonymise)
    package.add_original(options.with_paths ? original : paths.report(original));
  TWINRUN_ASSIGN(Bundle made, package.write(path));
  made.reduced = std::move(out.reduced);
  made.notes = std::move(out.notes);
  made.is_foreign = foreign;
  return made;
}

}  // namespace

Result<Bundle> bundle(const std::string& results, const std::string& path,
                      const BundleOptions& options, Progress* progress, const StopFlag* stop) {
  const std::string report_path = (fs::path(results) / "report.json").string();
  TWINRUN_ASSIGN(const auto report_bytes, read_whole_file(report_path));
  const std::string report_json(reinterpret_cast<const char*>(report_bytes.data()),
                                report_bytes.size());
  TWINRUN_ASSIGN(const Report original, report_from_json(report_json, report_path));
  if (original.kind == "recorded step") return bundle_step(original, results, path, options);
  if (original.kind == "JAX step" && original.verdict == VerdictClass::kSharding) {
    TWINRUN_ASSIGN(const Report again, sharding_again(results, options, progress, stop));
    if (stop != nullptr && stop->load()) {
      Bundle interrupted;
      interrupted.interrupted = true;
      return interrupted;
    }
    return bundle_scenario(again, original, results, path, options, progress, stop);
  }
  if (original.kind == "module" || original.kind == "JAX step")
    return bundle_module(original, results, path, options);
  if (original.kind != "scenario")
    return Error{
        fmt::format("a bundle is of one step, and this is of: {}", original.kind), report_path,
        original.kind != "two sides" ? "send this folder"
        : original.verdict == VerdictClass::kEngineBug
            ? "bundle the folder a/ or b/ of a side"
            : "send it with the traces of both sides, which twinrun diagnose A --against B "
              "compares again"};
  return bundle_scenario(original, original, results, path, options, progress, stop);
}

}  // namespace twinrun
