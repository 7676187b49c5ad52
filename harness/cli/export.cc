// twinrun export: writes a training step as StableHLO text, with arguments and results.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/program.h"
#include "harness/foreign/export_step.h"
#include "harness/run/engine_setup.h"

namespace twinrun::cli {

Result<int> export_verb(const Args& args) {
  Options options;
  add_program_options(options);
  options.flag("stablehlo", "as StableHLO text (MLIR); the only form");
  options.number<int>("cores", "1: the whole batch; N: the sharded step, N replicas of one module",
                      1);
  options.flag("values", "make the value of every op a result");
  options.text("out,o", "folder (default NAME-stablehlo)");
  options.number<int>("threads", "host threads (default: all cores); never changes a bit");
  options.flag("json", "one JSON document on stdout");
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun export SCENARIO|--program FILE --stablehlo [-o FOLDER] [--cores N]",
            "twinrun export digits_mlp --stablehlo --cores 8", options, {"?SCENARIO"}));
  if (parsed.help) return 0;
  if (!parsed.get<bool>("stablehlo"))
    return Error{"no form is given", "", "add --stablehlo, the only form"};
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
