// twinrun diagnose: trains reference and subject, compares them and reports a verdict.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "harness/cli/cli.h"
#include "harness/cli/progress_printer.h"
#include "harness/diagnose/pipeline.h"
#include "harness/experiment/engines.h"
#include "harness/experiment/imported.h"
#include "harness/host/folder_lock.h"
#include "harness/run/reference_cache.h"
#include "program/base/digest.h"
#include "program/base/names.h"
#include "reports/text.h"

namespace twinrun::cli {
namespace {

Result<std::vector<std::string>> fail_on(const Parsed& parsed) {
  std::vector<std::string> classes;
  if (!parsed.has("fail-on")) return classes;
  const std::vector<std::string> known = {"sharding",         "program",      "engine_bug",
                                          "nondeterministic", "inconclusive", "noise"};
  const auto text = parsed.get<std::string>("fail-on");
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    if (std::ranges::find(known, item) == known.end()) {
      return Error{fmt::format("unknown class '{}' (known: {})", item, join(known, ", ")),
                   "--fail-on", fmt::format("did you mean '{}'?", nearest(item, known))};
    }
    classes.push_back(item);
    at = end + 1;
  }
  return classes;
}

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
  return fmt::format("twinrun-results/{}-{}", file_name(scenario.name), digest.hex().substr(0, 8));
}

int dry_run(const Experiment& experiment, const DiagnoseOptions& options, bool json) {
  const auto rows = plan(experiment, options);
  if (!rows) return fail(rows.error());
  if (json) {
    nlohmann::ordered_json j = {{"schema", 1}, {"directory", options.directory}};
    j["runs"] = nlohmann::ordered_json::array();
    for (const PlanRow& row : *rows) {
      j["runs"].push_back({{"run", row.name},
                           {"engine", row.engine},
                           {"settings", row.settings},
                           {"steps", row.steps},
                           {"flops_per_step", row.flops},
                           {"seconds", row.seconds},
                           {"megabytes", row.megabytes}});
    }
    fmt::print("{}\n", j.dump());
    return 0;
  }
  double seconds = 0, megabytes = 0;
  fmt::print("  {:<4} {:<12} {:<40} {:>6} {:>11} {:>12} {:>9}\n", "run", "on", "as", "steps",
             "GFLOP/step", "time", "disk");
  for (const PlanRow& row : *rows) {
    fmt::print("  {:<4} {:<12} {:<40} {:>6} {:>11.3g} {:>12} {:>6.1f} MB\n", row.name,
               text::engine_name(row.engine), row.settings, row.steps, row.flops / 1e9,
               duration_text(row.seconds), row.megabytes);
    seconds += row.seconds;
    megabytes += row.megabytes;
  }
  fmt::print("  in all about {} and {:.1f} MB in {}, probes of ops and causes not counted\n",
             duration_text(seconds), megabytes, options.directory);
  const DiagnoseSpec& asked = experiment.scenario.diagnose;
  if (!options.quick && !experiment.imported && asked.seeds > 1 && asked.max_seeds > asked.seeds)
    fmt::print("  more seeds follow, up to {}, until the effect is decided (diagnose.max_seeds)\n",
               asked.max_seeds);
  return 0;
}

// The experiment of --program and its options; nullopt where a scenario is given.
Result<std::optional<Experiment>> imported_of(const Parsed& parsed) {
  const auto text = [&](const char* key) {
    return parsed.has(key) ? parsed.get<std::string>(key) : std::string();
  };
  if (!parsed.has("program")) {
    for (const char* key : {"state", "batch", "binding"}) {
      if (parsed.has(key))
        return Error{"is of an imported program", fmt::format("--{}", key),
                     "give --program FILE as well"};
    }
    if (!parsed.has("?SCENARIO"))
      return Error{"SCENARIO is missing", "",
                   "usage: twinrun diagnose SCENARIO, or twinrun diagnose --program FILE"};
    return std::optional<Experiment>();
  }
  if (parsed.has("?SCENARIO"))
    return Error{fmt::format("both a scenario, '{}', and --program", text("?SCENARIO")), "",
                 "give one of them"};
  for (const char* key : {"baseline", "subject"}) {
    if (text(key).starts_with("exec:"))
      return Error{"engines of other processes know scenarios only, no imported program",
                   fmt::format("--{}", key), "tpu, cpu, honest:SEED"};
  }
  TWINRUN_ASSIGN(const Overrides overrides, overrides_of(parsed));
  TWINRUN_ASSIGN(Experiment e, import_experiment({text("program"), text("binding"), text("state"),
                                                  text("batch"), overrides}));
  return std::optional<Experiment>(std::move(e));
}

}  // namespace

int diagnose_verb(const Args& args) {
  if (const auto done = fault_help(args)) return *done;
  po::options_description options("options");
  add_scenario_options(options);
  options.add_options()(
      "program", po::value<std::string>(),
      "instead of a scenario: a training step as HLO or StableHLO text (docs/guides/import.md)")(
      "state", po::value<std::string>(),
      "its initial state: a checkpoint, .npz, .safetensors (default STEM.state.npz)")(
      "batch", po::value<std::string>(),
      "its inputs, with a leading axis over steps (default STEM.batch.npz)")(
      "binding", po::value<std::string>(),
      "which parameter is what (default STEM.json, else guessed)")(
      "baseline", po::value<std::string>()->default_value("cpu"), "the reference engine")(
      "subject", po::value<std::string>()->default_value("tpu"), "the engine under test")(
      "out,o", po::value<std::string>(),
      "folder of the results (default twinrun-results/NAME-DIGEST8)")(
      "quick", po::bool_switch(),
      "no seeds: a fault, another program or exact agreement is found, all else is inconclusive")(
      "cure", po::bool_switch(),
      "where sharding changes the meaning: run the cure, too, and show what is left of the drift")(
      "fresh", po::bool_switch(), "compute kept reference runs again")(
      "dry-run", po::bool_switch(), "what would run, how long, how much disk")(
      "fail-on", po::value<std::string>(),
      "classes that count as bad, e.g. engine_bug,sharding; all others exit 0");
  add_plugin_option(options);
  add_fault_option(options, "subject");
  add_common_options(options);
  const Parsed parsed = parse(
      args,
      "twinrun diagnose SCENARIO [OPTIONS]\n       twinrun diagnose --program STEP.hlo [OPTIONS]",
      "twinrun diagnose digits_mlp --fault 'truncate_bf16@dense1/kernel.grad,from=5'", options,
      {"?SCENARIO"});
  if (parsed.exit) return *parsed.exit;

  const auto imported = imported_of(parsed);
  if (!imported) return fail(imported.error());
  const auto scenario =
      *imported ? Result<Scenario>((*imported)->scenario) : scenario_of(parsed, "?SCENARIO");
  if (!scenario) return fail(scenario.error());
  DiagnoseOptions o;
  o.baseline = engine_of(parsed, "baseline");
  o.subject = engine_of(parsed, "subject");
  o.quick = parsed.get<bool>("quick");
  o.cure = parsed.get<bool>("cure");
  o.command = command_line();
  o.cache = reference_cache_folder();
  o.fresh = parsed.get<bool>("fresh");
  const auto threads = threads_of(parsed);
  if (!threads) return fail(threads.error());
  o.threads = *threads;
  auto faults = faults_of(parsed);
  if (!faults) return fail(faults.error());
  o.faults = *faults;
  const Status takes = check_takes_faults(o.subject, !o.faults.empty());
  if (!takes) return fail(takes.error());
  const Status begin = check_faults_begin(o.faults, scenario->train.steps);
  if (!begin) return fail(begin.error());
  const auto bad = fail_on(parsed);
  if (!bad) return fail(bad.error());
  o.directory = parsed.has("out") ? parsed.get<std::string>("out") : default_folder(*scenario, o);
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  for (const auto& engine : {o.baseline, o.subject}) {
    if (const auto backend = make_engine(engine, *scenario, {}, &printer); !backend)
      return fail_engine(backend.error(), engine);
  }
  if (parsed.get<bool>("dry-run")) {
    const auto experiment = *imported ? Result<Experiment>(**imported) : make_experiment(*scenario);
    if (!experiment) return fail(experiment.error());
    return dry_run(*experiment, o, parsed.get<bool>("json"));
  }

  const auto lock = FolderLock::take(o.directory);
  if (!lock) return fail(lock.error());
  const bool json = parsed.get<bool>("json");
  const auto diagnosis = *imported ? diagnose(**imported, o, &printer, &stop)
                                   : diagnose(*scenario, o, &printer, &stop);
  if (!diagnosis) return fail(diagnosis.error());
  if (diagnosis->interrupted) {
    return fail({"interrupted; the runs that were finished lie in " + o.directory + "/runs", "",
                 "the same command begins again"},
                kExitInterrupted);
  }
  const Report& report = diagnosis->report;
  if (json) {
    fmt::print("{}\n", to_json(report));
  } else {
    print_report(report);
  }
  // A failed engine was not judged, so --fail-on must not turn that into success.
  const bool failed = std::ranges::any_of(
      report.findings, [](const Finding& f) { return f.cause == "engine_failed"; });
  const bool counts = !parsed.has("fail-on") || failed ||
                      std::ranges::find(*bad, lower_case(to_string(report.verdict))) != bad->end();
  return counts ? exit_code(report.verdict, report.effect) : 0;
}

}  // namespace twinrun::cli
