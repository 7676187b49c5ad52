// twinrun compare: compares two engines or settings over paired seeds.
#include "harness/gate/compare.h"

#include <fmt/format.h>

#include <cmath>

#include "harness/cli/program.h"
#include "harness/cli/progress_printer.h"

namespace twinrun::cli {
namespace {

// --a, --a-cores, --a-set, --a-fault; the same for b.
void add_arm_options(Options& options, const std::string& arm) {
  add_engine_option(options, arm, "engine of this arm", Engines::kWithDouble, "cpu");
  options.number<int>(arm + "-cores",
                      "number of cores: 1 computes the whole batch, N shards it over N cores "
                      "(default: tpu.cores for tpu, otherwise 1)");
  add_key_option(options, arm + "-set",
                 "override a key of the scenario for this arm only (repeatable)");
  add_fault_option(options, arm + "-fault", "engine of this arm");
}

Result<CompareArmSpec> arm_of(const Parsed& parsed, const std::string& arm, int threads) {
  CompareArmSpec spec;
  spec.engine.engine = parsed.get<std::string>(arm);
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

Result<int> show(const Comparison& comparison, bool json) {
  if (json) {
    print_document(to_json(comparison) + "\n");
  } else {
    print_text(to_terminal(comparison, terminal_width()));
  }
  return exit_code(comparison.outcome);
}

}  // namespace

Result<int> compare_verb(const Args& args) {
  if (fault_help(args)) return 0;
  Options options;
  add_arm_options(options, "a");
  add_arm_options(options, "b");
  options.number<int>(
      "seeds", "number of pairs, fixed in advance (default: diagnose.seeds of the scenario)");
  options.number<double>(
      "margin",
      "difference of the metric that does not matter (default: diagnose.margin, else 2 standard "
      "deviations between the seeds of A)");
  options.one_of("metric", "metric on held-out samples", {{"loss"}, {"accuracy"}}, "loss");
  add_program_options(options);
  add_common_options(options);
  TWINRUN_ASSIGN(
      const Parsed parsed,
      parse(args, "twinrun compare SCENARIO|--program FILE --a ENGINE --b ENGINE [OPTIONS]",
            "twinrun compare digits_mlp --a cpu --b tpu --seeds 5", options, {"?SCENARIO"}));
  if (parsed.help) return 0;
  TWINRUN_ASSIGN(const auto threads, threads_of(parsed));
  CompareOptions o;
  TWINRUN_ASSIGN(o.source, source_of(parsed));
  TWINRUN_ASSIGN(o.settings, overrides_of(parsed));
  TWINRUN_ASSIGN(o.a, arm_of(parsed, "a", threads));
  TWINRUN_ASSIGN(o.b, arm_of(parsed, "b", threads));
  if (parsed.has("seeds")) {
    o.seeds = parsed.get<int>("seeds");
    if (o.seeds < 1 || o.seeds > 10000)
      return Error{fmt::format("{} seeds", o.seeds), "--seeds", "allowed: 1 to 10000"};
  }
  if (parsed.has("margin")) {
    o.margin = parsed.get<double>("margin");
    if (!(o.margin > 0) || !std::isfinite(o.margin))
      return Error{fmt::format("a margin of {}", o.margin), "--margin", "a number above 0"};
  }
  if (parsed.get<std::string>("metric") == "accuracy") o.metric = CompareOptions::Metric::kAccuracy;
  ProgressPrinter printer(parsed.get<bool>("quiet"), parsed.get<bool>("verbose"));
  const StopFlag& stop = install_stop_flag();
  o.progress = &printer;
  o.stop = &stop;
  TWINRUN_ASSIGN(const auto comparison, compare(o));
  return show(comparison, parsed.get<bool>("json"));
}

}  // namespace twinrun::cli
