// twinrun export: writes a training step as StableHLO text, with arguments and results; or the
// tensors of a checkpoint, core by core.
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "harness/cli/program.h"
#include "harness/foreign/export_state.h"
#include "harness/foreign/export_step.h"
#include "harness/run/engine_setup.h"

namespace twinrun::cli {
namespace {

Result<int> export_tensors(const Parsed& parsed) {
  const auto file = parsed.get<std::string>("tensors");
  const std::string folder = parsed.has("out")
                                 ? parsed.get<std::string>("out")
                                 : std::filesystem::path(file).stem().string() + "-state";
  TWINRUN_ASSIGN(const ExportedState done, export_state(file, folder));
  if (parsed.get<bool>("json")) {
    const nlohmann::ordered_json j = {{"schema", 1},
                                      {"files", done.files},
                                      {"tensors", done.tensors},
                                      {"replicas", replicas_json(done.replicas)}};
    print_document(j.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  } else {
    print("{}: {} tensors, {}\n", folder, done.tensors,
          done.replicas.empty()
              ? "the same on all cores"
              : fmt::format("{} of them one for each of {} cores",
                            done.replicas.front().tensors.size(), done.replicas.size()));
  }
  return 0;
}

}  // namespace

Result<int> export_verb(const Args& args) {
  Options options;
  add_program_options(options);
  options.flag("stablehlo", "the step as StableHLO text (MLIR)");
  options.text("tensors",
               "a checkpoint or run file: its tensors, one array for each core where cores differ");
  options.number<int>("cores", "1: the whole batch; N: the sharded step, N replicas of one module",
                      1);
  options.flag("values", "make the value of every op a result");
  options.text("out,o", "folder (default NAME-stablehlo, NAME-state)");
  options.number<int>("threads", "host threads (default: all cores); never changes a bit");
  options.flag("json", "one JSON document on stdout");
  TWINRUN_ASSIGN(const Parsed parsed,
                 parse(args,
                       "twinrun export SCENARIO|--program FILE|--tensors FILE [--stablehlo] [-o "
                       "FOLDER] [--cores N]",
                       "twinrun export digits_mlp --stablehlo --cores 8", options, {"?SCENARIO"}));
  if (parsed.help) return 0;
  if (parsed.has("tensors")) {
    if (parsed.get<bool>("stablehlo"))
      return Error{"a checkpoint has no step to write as StableHLO", "--stablehlo",
                   "give one of --stablehlo and --tensors"};
    return export_tensors(parsed);
  }
  if (!parsed.get<bool>("stablehlo"))
    return Error{"no form is given", "", "add --stablehlo, or --tensors FILE"};
  TWINRUN_ASSIGN(const auto threads, threads_of(parsed));
  TWINRUN_ASSIGN(const auto experiment, experiment_of(parsed));
  const Scenario& scenario = experiment.scenario;
  const int cores = parsed.get<int>("cores");
  TWINRUN_RETURN_IF_ERROR(check_cores(scenario, cores));
  Sharding sharding = experiment.sharding;
  sharding.cores = cores;
  TWINRUN_RETURN_IF_ERROR(check_shares(experiment, sharding, /*alone=*/false));
  ExportOptions o;
  o.folder = parsed.has("out") ? parsed.get<std::string>("out") : scenario.name + "-stablehlo";
  o.values = parsed.get<bool>("values");
  o.threads = threads;
  TWINRUN_ASSIGN(const auto done, export_step(experiment,
                                              cores == 1 ? experiment.whole(Experiment::Stack::kTpu)
                                                         : experiment.sharded(sharding),
                                              o));
  if (parsed.get<bool>("json")) {
    const nlohmann::ordered_json j = {{"schema", 1},
                                      {"files", done.files},
                                      {"ops", done.ops},
                                      {"arguments", done.arguments},
                                      {"results", done.results}};
    print_document(j.dump() + "\n");
  } else {
    print("{}: {} ops, {} arguments, {} results, {} replica{}\n", o.folder, done.ops,
          done.arguments, done.results, cores, cores == 1 ? "" : "s");
  }
  return 0;
}

}  // namespace twinrun::cli
