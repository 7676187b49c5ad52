// Estimates what diagnose would do: the time of up to three measured steps of R, scaled by samples.
#include <fmt/format.h>

#include <chrono>

#include "harness/diagnose/pipeline.h"
#include "harness/experiment/engines.h"
#include "harness/run/run.h"
#include "program/graph/liveness.h"

namespace twinrun {

Result<std::vector<PlanRow>> plan(const Experiment& e, const DiagnoseOptions& options) {
  const Scenario& scenario = e.scenario;
  TWINRUN_RETURN_IF_ERROR(check_shares(e, e.sharding, /*alone=*/true));
  TWINRUN_ASSIGN(const auto cpu, make_engine(options.baseline, scenario,
                                             backend_options(scenario, options.threads)));
  const Program whole = e.whole();
  RunOptions probe;
  probe.steps = std::min<int64_t>(3, scenario.train.steps);
  probe.threads = options.threads;
  probe.evaluate = false;
  TWINRUN_ASSIGN(const RunResult measured, train(e, whole, *cpu, probe));
  const double per_step = measured.seconds / static_cast<double>(probe.steps);

  double state_mb = 0;
  for (const auto& var : whole.state) state_mb += static_cast<double>(var.type.bytes()) / 1e6;
  const int64_t steps = scenario.train.steps, cores = scenario.tpu.cores;
  const double share = 1.0 / static_cast<double>(cores), flops = step_flops(whole);
  const std::string all = fmt::format("batch {}", scenario.train.batch);
  const std::string one = fmt::format("batch {}", scenario.train.batch / cores);
  const std::string split = fmt::format("{} cores x {}", cores, scenario.train.batch / cores);
  const auto row = [&](const std::string& name, const std::string& engine,
                       const std::string& settings, int64_t n, double part) {
    return PlanRow{name,    engine,       settings,
                   n,       flops * part, per_step * part * static_cast<double>(n),
                   state_mb};
  };
  std::vector<PlanRow> rows = {row("R", options.baseline, all, steps, 1),
                               row("R2", options.baseline, all, steps, 1)};
  if (cores > 1) {
    rows.push_back(row("R1", options.baseline, one, steps, share));
    rows.push_back(row("S", options.baseline, split, steps, 1));
    rows.push_back(row("E1", options.subject, one, steps, share));
  } else if (e.two_algebras()) {
    rows.push_back(row("S", options.baseline, all, steps, 1));
  }
  rows.push_back(row("T", options.subject, split, steps, 1));
  for (int seed = 1; seed < scenario.diagnose.seeds && !options.quick && e.has_held_out(); ++seed) {
    for (const auto& [name, engine] :
         {std::pair<std::string, std::string>{"R", options.baseline}, {"T", options.subject}}) {
      rows.push_back(
          row(fmt::format("{}#{}", name, seed), engine, name == "R" ? all : split, steps, 1));
      rows.back().megabytes = 0;
    }
  }
  return rows;
}

}  // namespace twinrun
