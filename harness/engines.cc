#include "harness/engines.h"

#include "backends/exec/exec_backend.h"

namespace twinrun {

Result<std::unique_ptr<Backend>> make_engine(const std::string& name, const Scenario& scenario,
                                             const BackendOptions& options, Progress* progress) {
  if (!name.starts_with(kExecPlace)) return make_backend(name, options);
  ExecOptions exec;
  exec.command = name.substr(kExecPlace.size());
  exec.scenario = resolved_toml(scenario);
  if (progress != nullptr) {
    exec.on_alive = [progress](const std::string& what) { progress->alive(what); };
  }
  return make_exec_backend(exec, options.threads);
}

}  // namespace twinrun
