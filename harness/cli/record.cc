// twinrun record: records a golden run for twinrun verify.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/cli.h"
#include "harness/cli/progress_printer.h"
#include "harness/gate/golden.h"
#include "reports/text.h"

namespace twinrun::cli {

int record_verb(const Args& args) {
  po::options_description options("options");
  add_scenario_options(options);
  options.add_options()("engine,e", po::value<std::string>()->default_value("cpu"),
                        "cpu, tpu, honest:SEED, xla[:PLUGIN], exec:COMMAND")(
      "cores", po::value<int>(),
      "1: the whole batch on one core (default on cpu); N: sharded (default on tpu: tpu.cores)")(
      "states", po::value<int>()->default_value(4),
      "of how many steps the state before it is kept: what noise is judged from")(
      "out,o", po::value<std::string>(), "file to write (default NAME.golden.h5)");
  add_plugin_option(options);
  add_common_options(options);
  const Parsed parsed =
      parse(args, "twinrun record SCENARIO --engine ENGINE [OPTIONS] -o FILE.golden.h5",
            "twinrun record digits_mlp --engine tpu -o mlp.golden.h5", options, {"SCENARIO"});
  if (parsed.exit) return *parsed.exit;
  const auto scenario = scenario_of(parsed);
  if (!scenario) return fail(scenario.error());
  const auto threads = threads_of(parsed);
  if (!threads) return fail(threads.error());
  const int states = parsed.get<int>("states");
  if (states < 1 || states > 100)
    return fail({fmt::format("{} states", states), "--states", "allowed: 1 to 100"});
  GoldenOptions o;
  o.spec.engine = engine_of(parsed, "engine");
  if (o.spec.engine == "cpu:f64")
    return fail({"keeps its state in binary64, which no other engine can go on from", "cpu:f64",
                 "record cpu"});
  if (parsed.has("cores")) o.spec.cores = parsed.get<int>("cores");
  o.spec.threads = *threads;
  o.states = states;
  const auto path =
      parsed.has("out") ? parsed.get<std::string>("out") : scenario->name + ".golden.h5";
  if (const Status writable = check_output(path); !writable) return fail(writable.error());
  const auto experiment = make_experiment(*scenario);
  if (!experiment) return fail(experiment.error());

  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  o.progress = &printer;
  o.stop = &stop;
  const auto golden = record_golden(*experiment, o);
  if (!golden) return fail(golden.error());
  if (golden->ended.interrupted())
    return fail({"interrupted: nothing was written", "", ""}, kExitInterrupted);
  if (!golden->ended.completed())
    return fail({to_string(golden->ended) + ": no golden run", path, "lower optimizer.lr"}, 1);
  if (const Status written = write_run(path, *golden); !written) return fail(written.error());
  const auto facts = golden_facts(*golden, path);
  if (!facts) return fail(facts.error());

  if (parsed.get<bool>("json")) {
    const nlohmann::ordered_json j = {{"schema", 1},
                                      {"file", path},
                                      {"engine", golden->engine},
                                      {"cores", golden->cores},
                                      {"steps", golden->steps.size()},
                                      {"states", golden->checkpoints.size() - 1},
                                      {"traced", golden->trace.size()},
                                      {"declares", facts->declares},
                                      {"repeats", facts->repeats},
                                      {"noise_unusable", facts->noise},
                                      {"root_digest", golden->root_digest().hex()}};
    fmt::print("{}\n", j.dump());
    return 0;
  }
  fmt::print("{}: {} on {} ({}), {} kept, {} values traced\n  run digest {}\n", path,
             text::plural(static_cast<int64_t>(golden->steps.size()), "step"), golden->engine,
             golden->engine_settings,
             text::plural(static_cast<int64_t>(golden->checkpoints.size()) - 1, "state"),
             text::count(static_cast<int64_t>(golden->trace.size())), golden->root_digest().hex());
  if (!facts->repeats)
    fmt::print("  the engine does not repeat its own bits: noise alone can decide\n");
  if (!facts->noise.empty())
    fmt::print("  noise can decide nothing: {}; bits do\n", text::clean(facts->noise));
  return 0;
}

}  // namespace twinrun::cli
