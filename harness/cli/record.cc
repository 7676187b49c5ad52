// twinrun record: records a golden run for twinrun verify.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "harness/cli/known.h"
#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"
#include "harness/gate/golden.h"
#include "harness/trace/trace_file.h"
#include "reports/text.h"

namespace twinrun::cli {

Result<int> record_verb(const Args& args) {
  Options options;
  add_program_options(options);
  add_engine_option(options, "engine,e", "engine to record", Engines::kWithForeign, "cpu");
  options.number<int>(
      "cores",
      "1: the whole batch on one core (default on cpu); N: sharded (default on tpu: tpu.cores)");
  options.number<int>("states", "number of steps before which the state is kept, to estimate noise",
                      4);
  options.text("out,o", "file to write (default NAME.golden.h5)");
  options.text("again", "of a trace: a second recording of the step, to know what repeats");
  add_common_options(options);
  if (const auto failed = given_to_python("record", args, options)) return *failed;
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args,
            "twinrun record SCENARIO|--program FILE --engine ENGINE [OPTIONS] -o FILE.golden.h5\n"
            "       twinrun record SCRIPT [ARGS]             a step of PyTorch, into known.json\n"
            "       twinrun record TRACE [--again TRACE]     one that was recorded already",
            "twinrun record digits_mlp --engine tpu -o mlp.golden.h5", options, {"?SCENARIO"}));
  if (parsed.help) return 0;
  if (parsed.has("?SCENARIO") && is_trace(parsed.get<std::string>("?SCENARIO")))
    return record_known(parsed);
  TWINRUN_ASSIGN(const Experiment experiment, experiment_of(parsed));
  const Scenario& scenario = experiment.scenario;
  TWINRUN_ASSIGN(const auto threads, threads_of(parsed));
  const int states = parsed.get<int>("states");
  if (states < 1 || states > 100)
    return Error{fmt::format("{} states", states), "--states", "allowed: 1 to 100"};
  GoldenOptions o;
  o.spec.engine = parsed.get<std::string>("engine");
  if (o.spec.engine == "cpu:f64")
    return Error{"keeps its state in binary64, from which no other engine can continue", "cpu:f64",
                 "record cpu"};
  if (parsed.has("cores")) o.spec.cores = parsed.get<int>("cores");
  o.spec.threads = threads;
  o.states = states;
  const auto path =
      parsed.has("out") ? parsed.get<std::string>("out") : scenario.name + ".golden.h5";
  TWINRUN_RETURN_IF_ERROR(check_output(path));

  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  o.progress = &printer;
  o.stop = &stop;
  TWINRUN_ASSIGN(const auto golden, record_golden(experiment, o));
  if (golden.ended.interrupted())
    return Error{"interrupted: nothing was written", "", "", Error::Kind::kInterrupted};
  if (!golden.ended.completed())
    return Error{to_string(golden.ended) + ": no golden run", path, "lower optimizer.lr",
                 Error::Kind::kRun};
  TWINRUN_RETURN_IF_ERROR(write_run(path, golden));
  TWINRUN_ASSIGN(const auto facts, golden_facts(golden, path));

  if (parsed.get<bool>("json")) {
    const nlohmann::ordered_json j = {{"schema", 1},
                                      {"file", path},
                                      {"engine", golden.engine},
                                      {"cores", golden.cores},
                                      {"steps", golden.steps.size()},
                                      {"states", golden.checkpoints.size() - 1},
                                      {"traced", golden.trace.size()},
                                      {"declares", facts.declares},
                                      {"repeats", facts.repeats},
                                      {"noise_unusable", facts.noise},
                                      {"root_digest", golden.root_digest().hex()}};
    print_document(j.dump() + "\n");
    return 0;
  }
  print("{}: {} on {} ({}), {} kept, {} values traced\n  run digest {}\n", path,
        text::plural(static_cast<int64_t>(golden.steps.size()), "step"), golden.engine,
        golden.engine_settings,
        text::plural(static_cast<int64_t>(golden.checkpoints.size()) - 1, "state"),
        text::count(static_cast<int64_t>(golden.trace.size())), golden.root_digest().hex());
  if (golden.cores == 1 && scenario.tpu.cores > 1 && o.spec.engine != "cpu")
    print("  one core: what crosses cores is not in it (--cores {})\n", scenario.tpu.cores);
  if (!facts.repeats) print("  the engine does not repeat its own bits: only noise can decide\n");
  if (!facts.noise.empty())
    print("  noise cannot decide: {}; bits decide\n", text::clean(facts.noise));
  return 0;
}

}  // namespace twinrun::cli
