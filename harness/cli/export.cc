// twinrun export: writes a training step as StableHLO text, with arguments and results.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/cli.h"
#include "harness/foreign/export_step.h"
#include "harness/run/engine_setup.h"

namespace twinrun::cli {

int export_verb(const Args& args) {
  po::options_description options("options");
  add_scenario_options(options);
  options.add_options()("stablehlo", po::bool_switch(),
                        "as StableHLO text (MLIR); the one form that there is")(
      "cores", po::value<int>()->default_value(1),
      "1: the whole batch; N: the sharded step, N replicas of one module")(
      "values", po::bool_switch(), "every op's value is a result")(
      "out,o", po::value<std::string>(), "folder (default NAME-stablehlo)")(
      "threads", po::value<int>(), "host threads (default: all cores); never changes a bit")(
      "json", po::bool_switch(), "one JSON document on stdout");
  const Parsed parsed =
      parse(args, "twinrun export SCENARIO --stablehlo [-o FOLDER] [--cores N]",
            "twinrun export digits_mlp --stablehlo --cores 8", options, {"SCENARIO"});
  if (parsed.exit) return *parsed.exit;
  if (!parsed.get<bool>("stablehlo"))
    return fail({"no form is named", "", "the one that there is: --stablehlo"});
  const auto scenario = scenario_of(parsed);
  if (!scenario) return fail(scenario.error());
  const auto threads = threads_of(parsed);
  if (!threads) return fail(threads.error());
  const auto experiment = make_experiment(*scenario);
  if (!experiment) return fail(experiment.error());
  const int cores = parsed.get<int>("cores");
  if (const Status divides = check_cores(*scenario, cores); !divides) return fail(divides.error());
  Sharding sharding = experiment->sharding;
  sharding.cores = cores;
  if (const Status fits = check_shares(*experiment, sharding, /*alone=*/false); !fits)
    return fail(fits.error());
  ExportOptions o;
  o.folder = parsed.has("out") ? parsed.get<std::string>("out") : scenario->name + "-stablehlo";
  o.values = parsed.get<bool>("values");
  o.threads = *threads;
  const auto done = export_step(
      *experiment,
      cores == 1 ? experiment->whole(Experiment::Stack::kTpu) : experiment->sharded(sharding), o);
  if (!done) return fail(done.error());
  if (parsed.get<bool>("json")) {
    const nlohmann::ordered_json j = {{"schema", 1},
                                      {"files", done->files},
                                      {"ops", done->ops},
                                      {"arguments", done->arguments},
                                      {"results", done->results}};
    fmt::print("{}\n", j.dump());
  } else {
    fmt::print("{}: {} ops, {} arguments, {} results, {} replica{}\n", o.folder, done->ops,
               done->arguments, done->results, cores, cores == 1 ? "" : "s");
  }
  return 0;
}

}  // namespace twinrun::cli
