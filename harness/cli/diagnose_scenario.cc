// Diagnoses a scenario or a program: trains reference and subject, compares them and reports a
// verdict.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "checkpoints/container/temporary.h"
#include "harness/check/check.h"
#include "harness/cli/diagnose_what.h"
#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "harness/diagnose/pipeline.h"
#include "harness/experiment/engines.h"
#include "harness/host/folder_lock.h"
#include "harness/run/reference_cache.h"
#include "program/base/digest.h"
#include "program/base/names.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

// The name of a scenario is untrusted and must not select another folder.
std::string file_name(std::string name) {
  for (char& c : name) {
    if (c == '/' || c == '\\' || static_cast<unsigned char>(c) < ' ') c = '_';
  }
  return name;
}

// Named after the scenario's digest. With other engines than the defaults, or with faults, these
// are part of the digest, so that no diagnosis takes the folder of another.
std::string default_folder(const Scenario& scenario, const DiagnoseOptions& o) {
  Digest digest = scenario_digest(scenario);
  if (o.baseline != "cpu" || o.subject != "tpu" || !o.faults.empty()) {
    DigestBuilder all;
    all.add(digest);
    all.add(o.baseline);
    all.add(o.subject);
    for (const FaultSpec& fault : o.faults) all.add(fault.text);
    digest = all.finish();
  }
  return fmt::format("twinrun-results/{}-{}{}", file_name(scenario.name), digest.hex().substr(0, 8),
                     o.quick ? "-quick" : "");
}

Result<int> dry_run(const Experiment& experiment, const DiagnoseOptions& options, bool json) {
  TWINRUN_ASSIGN(const auto rows, plan(experiment, options));
  if (json) {
    nlohmann::ordered_json j = {{"schema", 1}, {"directory", options.directory}};
    j["runs"] = nlohmann::ordered_json::array();
    for (const PlanRow& row : rows) {
      j["runs"].push_back({{"run", row.name},
                           {"engine", row.engine},
                           {"settings", row.settings},
                           {"steps", row.steps},
                           {"flops_per_step", row.flops},
                           {"seconds", row.seconds},
                           {"megabytes", row.megabytes}});
    }
    print_document(j.dump() + "\n");
    return 0;
  }
  double seconds = 0, megabytes = 0;
  print("  {:<4} {:<12} {:<40} {:>6} {:>11} {:>12} {:>9}\n", "run", "on", "as", "steps",
        "GFLOP/step", "time", "disk");
  for (const PlanRow& row : rows) {
    print("  {:<4} {:<12} {:<40} {:>6} {:>11.3g} {:>12} {:>6.1f} MB\n", row.name,
          text::engine_name(row.engine), row.settings, row.steps, row.flops / 1e9,
          duration_text(row.seconds), row.megabytes);
    seconds += row.seconds;
    megabytes += row.megabytes;
  }
  print("  in all about {} and {:.1f} MB in {}, probes of ops and causes not counted\n",
        duration_text(seconds), megabytes, options.directory);
  const DiagnoseSpec& asked = experiment.scenario.diagnose;
  if (!options.quick && experiment.has_held_out() && asked.seeds > 1 &&
      asked.max_seeds > asked.seeds)
    print("  more seeds follow, up to {}, until the effect is decided (diagnose.max_seeds)\n",
          asked.max_seeds);
  return 0;
}

// What `twinrun check` finds, for the report. Of a program errors and warnings, so that a diagnosis
// of it says the same. Of a scenario, and a subject that emulates a TPU, the errors: our own engines
// compute what a real TPU refuses.
Result<std::vector<std::string>> notes_of_check(const Parsed& parsed, const std::string& scenario,
                                                const ProgramFiles& files,
                                                const std::string& subject) {
  constexpr size_t kShown = 8;
  const bool program = !files.program.empty();
  std::vector<std::string> notes;
  if (!program && !subject.starts_with("tpu")) return notes;
  TWINRUN_ASSIGN(const Overrides overrides, overrides_of(parsed));
  TWINRUN_ASSIGN(const Checked checked,
                 program ? check_program(files) : check_scenario(scenario, overrides));
  for (const RuleFinding& f : checked.findings) {
    if (f.severity == Severity::kNote || (!program && f.severity != Severity::kError)) continue;
    if (notes.size() == kShown) {
      notes.push_back("twinrun check finds more.");
      break;
    }
    notes.push_back(program
                        ? fmt::format("twinrun check: {} {} ({}): {}; {}.", to_string(f.severity),
                                      f.id, f.where, f.found, f.fix)
                        : fmt::format("A TPU would refuse this (twinrun check, {}): {}: {}; {}.",
                                      f.id, f.where, f.found, f.fix));
  }
  return notes;
}

}  // namespace

void add_scenario_diagnosis_options(Options& options) {
  add_program_options(options);
  add_engine_option(options, "baseline", "the reference engine", Engines::kWithForeign, "cpu");
  add_engine_option(options, "subject", "the engine under test", Engines::kWithForeign, "tpu");
  options.flag(
      "quick",
      "no seeds: finds a fault, another program, a change of meaning or exact agreement, not what "
      "these do to learning; all else is inconclusive");
  options.flag("cure",
               "where sharding changes the meaning, also train the cured program and show the "
               "remaining drift");
  options.flag("fresh", "compute cached reference runs again");
  options.flag("dry-run", "show what would run, how long it takes and how much disk it needs");
  add_fault_option(options, "fault", "subject");
}

Result<int> diagnose_scenario(const Parsed& parsed, const What& what) {
  ExperimentSource source;
  const bool program = what.kind == WhatKind::kModule;
  TWINRUN_ASSIGN(source.program, program_files_of(parsed, program ? what.words.front() : ""));
  if (!program) source.scenario = what.words.front();
  TWINRUN_ASSIGN(const Overrides overrides, overrides_of(parsed));
  TWINRUN_ASSIGN(Experiment experiment, open_experiment(source, overrides));
  const Scenario& scenario = experiment.scenario;
  DiagnoseOptions o;
  o.baseline = parsed.get<std::string>("baseline");
  o.subject = parsed.get<std::string>("subject");
  o.quick = parsed.get<bool>("quick");
  o.cure = parsed.get<bool>("cure");
  o.command = command_line();
  o.cache = reference_cache_folder();
  o.fresh = parsed.get<bool>("fresh");
  TWINRUN_ASSIGN(o.threads, threads_of(parsed));
  TWINRUN_ASSIGN(o.faults, faults_of(parsed));
  TWINRUN_RETURN_IF_ERROR(check_takes_faults(o.subject, !o.faults.empty()));
  TWINRUN_RETURN_IF_ERROR(check_faults_begin(o.faults, scenario.train.steps));
  o.directory = parsed.has("out") ? parsed.get<std::string>("out") : default_folder(scenario, o);
  for (const auto& [option, engine] :
       {std::pair("--baseline", o.baseline), {"--subject", o.subject}})
    TWINRUN_RETURN_IF_ERROR(check_splits(option, engine, scenario.tpu.cores));
  o.ranks = ranks();
  // All ranks make the same results; those of the first are kept.
  std::optional<TemporaryFolder> discarded;
  if (!first_rank()) {
    TWINRUN_ASSIGN(discarded, TemporaryFolder::make("rank"));
    o.directory = discarded->path() + "/results";
  }
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  for (const auto& engine : {o.baseline, o.subject}) {
    TWINRUN_RETURN_IF_ERROR(make_engine(engine, scenario, {}, &printer));
  }
  TWINRUN_ASSIGN(o.notes,
                 notes_of_check(parsed, source.scenario, scenario.program_files, o.subject));
  for (const std::string& note : o.notes)
    say((note.starts_with("twinrun") ? "" : "twinrun: ") + note + "\n");
  if (parsed.get<bool>("dry-run")) return dry_run(experiment, o, parsed.get<bool>("json"));

  TWINRUN_ASSIGN(const auto lock, FolderLock::take(o.directory));
  TWINRUN_ASSIGN(const auto diagnosis, diagnose(std::move(experiment), o, &printer, &stop));
  if (diagnosis.interrupted) {
    return Error{"interrupted; the finished runs are in " + o.directory + "/runs", "",
                 "run the same command to go on from them", Error::Kind::kInterrupted};
  }
  // A launcher takes the exit code of the first.
  if (!first_rank()) return 0;
  return answer(diagnosis.report, parsed);
}

}  // namespace twinrun::cli
