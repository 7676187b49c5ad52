// twinrun compare: compares two engines or settings over paired seeds.
#include "harness/gate/compare.h"

#include <fmt/format.h>

#include <cmath>

#include "harness/cli/cli.h"
#include "harness/cli/progress_printer.h"

namespace twinrun::cli {
namespace {

// --a, --a-cores, --a-set, --a-fault; the same for b.
void add_arm_options(po::options_description& options, const std::string& arm) {
  const auto add = [&](const std::string& name, const po::value_semantic* value, const char* what) {
    options.add_options()((arm + name).c_str(), value, what);
  };
  add("", po::value<std::string>()->default_value("cpu"),
      "ENGINE of this arm: cpu, cpu:f64, tpu, honest:SEED, xla[:PLUGIN], exec:COMMAND");
  add("-cores", po::value<int>(), "1: the whole batch; N: sharded (default on tpu: tpu.cores)");
  add("-set", po::value<std::vector<std::string>>()->composing(),
      "KEY=VALUE of the scenario, of this arm alone (repeatable)");
  add("-fault", po::value<std::vector<std::string>>()->composing(),
      "make this arm's engine wrong on purpose (as diagnose --fault)");
}

Result<CompareArmSpec> arm_of(const Parsed& parsed, const std::string& arm, int threads) {
  CompareArmSpec spec;
  spec.engine.engine = engine_of(parsed, arm.c_str());
  spec.engine.threads = threads;
  spec.asked = spec.engine.engine;
  if (const std::string key = arm + "-cores"; parsed.has(key.c_str())) {
    spec.engine.cores = parsed.get<int>(key.c_str());
    spec.asked += fmt::format(" --{} {}", key, *spec.engine.cores);
  }
  for (const char* kind : {"-set", "-fault"}) {
    const std::string key = arm + kind;
    if (!parsed.has(key.c_str())) continue;
    for (const auto& text : parsed.get<std::vector<std::string>>(key.c_str()))
      spec.asked += fmt::format(" --{} {}", key, text);
  }
  TWINRUN_ASSIGN(spec.settings, overrides_of(parsed, (arm + "-set").c_str()));
  TWINRUN_ASSIGN(spec.engine.faults, faults_of(parsed, (arm + "-fault").c_str()));
  return spec;
}

}  // namespace

int compare_verb(const Args& args) {
  po::options_description options("options");
  add_arm_options(options, "a");
  add_arm_options(options, "b");
  options.add_options()("seeds", po::value<int>(),
                        "pairs, fixed beforehand (default: diagnose.seeds of the scenario)")(
      "margin", po::value<double>(),
      "what difference of the metric does not matter (default: diagnose.margin, else 2 standard "
      "deviations between the seeds of A)")("metric",
                                            po::value<std::string>()->default_value("loss"),
                                            "loss or accuracy, on held-out samples");
  add_scenario_options(options);
  add_plugin_option(options);
  add_common_options(options);
  const Parsed parsed =
      parse(args, "twinrun compare SCENARIO --a ENGINE --b ENGINE [OPTIONS]",
            "twinrun compare digits_mlp --a cpu --b tpu --seeds 5", options, {"SCENARIO"});
  if (parsed.exit) return *parsed.exit;
  const auto threads = threads_of(parsed);
  if (!threads) return fail(threads.error());
  CompareOptions o;
  o.scenario = parsed.get<std::string>("SCENARIO");
  const auto both = overrides_of(parsed);
  if (!both) return fail(both.error());
  o.settings = *both;
  const auto a = arm_of(parsed, "a", *threads), b = arm_of(parsed, "b", *threads);
  if (!a) return fail(a.error());
  if (!b) return fail(b.error());
  o.a = *a;
  o.b = *b;
  if (parsed.has("seeds")) {
    o.seeds = parsed.get<int>("seeds");
    if (o.seeds < 1 || o.seeds > 10000)
      return fail({fmt::format("{} seeds", o.seeds), "--seeds", "allowed: 1 to 10000"});
  }
  if (parsed.has("margin")) {
    o.margin = parsed.get<double>("margin");
    if (!(o.margin > 0) || !std::isfinite(o.margin))
      return fail({fmt::format("a margin of {}", o.margin), "--margin", "a number above 0"});
  }
  const auto metric = parsed.get<std::string>("metric");
  if (metric != "loss" && metric != "accuracy")
    return fail({fmt::format("unknown metric '{}'", metric), "--metric", "loss or accuracy"});
  if (metric == "accuracy") o.metric = CompareOptions::Metric::kAccuracy;
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  o.progress = &printer;
  o.stop = &stop;
  const auto comparison = compare(o);
  if (!comparison) return fail(comparison.error());
  if (parsed.get<bool>("json")) {
    fmt::print("{}\n", to_json(*comparison));
  } else {
    fmt::print("{}", to_terminal(*comparison, terminal_width()));
  }
  return exit_code(comparison->outcome);
}

}  // namespace twinrun::cli
