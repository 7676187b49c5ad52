// Selects the backend of an engine by the prefix of its name.
#include "harness/experiment/engines.h"

#include "backends/exec/exec_backend.h"
#include "backends/registry.h"
#include "program/text/stablehlo.h"

namespace twinrun {
bool is_foreign_engine(std::string_view name) { return name.starts_with(kExecPlace); }

Status check_takes_faults(std::string_view name, bool faults) {
  if (!faults || (!is_foreign_engine(name) && name != "cpu:f64")) return Ok{};
  return Error{std::string(name) + " does not support faults", "--fault",
               "use the built-in engine cpu or tpu"};
}

BackendOptions backend_options(const Scenario& scenario, int threads) {
  BackendOptions o;
  o.threads = threads;
  o.tpu.poison = scenario.tpu.poison;
  const std::string& p = scenario.tpu.precision;
  o.tpu.precision = p == "f32"       ? DotPrecision::kF32
                    : p == "high"    ? DotPrecision::kBf16x3
                    : p == "highest" ? DotPrecision::kBf16x6
                                     : DotPrecision::kBf16;
  return o;
}

Result<std::unique_ptr<Backend>> make_engine(const std::string& name, const Scenario& scenario,
                                             const BackendOptions& options, Progress* progress) {
  if (!name.starts_with(kExecPlace)) return make_backend(name, options);
  ExecOptions exec;
  exec.command = name.substr(kExecPlace.size());
  exec.scenario = resolved_toml(scenario);
  if (!scenario.imported.empty())
    exec.stablehlo_precision = stablehlo_precision(scenario.tpu.precision);
  exec.reuse_idle = true;
  if (progress != nullptr) {
    exec.on_alive = [progress](const std::string& what) { progress->alive(what); };
  }
  return make_exec_backend(exec, options.threads);
}

}  // namespace twinrun
