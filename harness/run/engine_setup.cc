// Sets up an engine by name: checks cores, shares and faults, and wraps it for timing and faults.
#include "harness/run/engine_setup.h"

#include <fmt/format.h>

#include "harness/experiment/engines.h"

namespace twinrun {

int cores_of(const EngineSpec& spec, const Scenario& scenario) {
  if (spec.cores) return *spec.cores;
  return spec.engine == "tpu" ? scenario.tpu.cores : 1;
}

Experiment::Stack stack_of(const EngineSpec& spec) {
  if (spec.stack) return *spec.stack;
  return spec.engine.starts_with("cpu") ? Experiment::Stack::kCpu : Experiment::Stack::kTpu;
}

Status check_cores(const Scenario& scenario, int cores) {
  if (!scenario.imported.empty() && cores != 1)
    return Error{fmt::format("{} cores for an imported program", cores), "--cores",
                 "leave it out: an imported program runs on one core"};
  if (cores >= 1 && scenario.train.batch % cores == 0) return Ok{};
  return Error{
      fmt::format("train.batch = {} is not divisible by {} cores", scenario.train.batch, cores),
      "--cores", "give a divisor of the batch"};
}

Result<EngineSetup> set_up(const Experiment& e, const EngineSpec& spec, Progress* progress) {
  const int cores = cores_of(spec, e.scenario);
  TWINRUN_RETURN_IF_ERROR(check_cores(e.scenario, cores));
  TWINRUN_RETURN_IF_ERROR(check_takes_faults(spec.engine, !spec.faults.empty()));
  BackendOptions options = backend_options(e.scenario, spec.threads);
  options.poison_memory = spec.poison_memory;
  options.ranks = spec.ranks;
  EngineSetup out;
  TWINRUN_ASSIGN(out.backend, make_engine(spec.engine, e.scenario, options, progress));
  Sharding sharding = e.sharding;
  sharding.cores = cores;
  TWINRUN_RETURN_IF_ERROR(check_shares(e, sharding, /*alone=*/false));
  out.program = as_computed_by(out.backend->capabilities(),
                               cores == 1 ? e.whole(stack_of(spec)) : e.sharded(sharding));
  const auto fits = FaultHooks::make(out.program, spec.faults, e.scenario.seed);
  if (!fits) return fits.error();
  out.backend = with_faults(std::move(out.backend), spec.faults, e.scenario.seed, out.faults);
  return out;
}

}  // namespace twinrun
