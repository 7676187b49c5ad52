#include "harness/engines.h"

#include "backends/exec/exec_backend.h"

namespace twinrun {

Result<std::unique_ptr<Backend>> make_engine(const std::string& name, const Scenario& scenario,
                                             const BackendOptions& options) {
  constexpr std::string_view kExec = "exec:";
  if (!name.starts_with(kExec)) return make_backend(name, options);
  return make_exec_backend(
      {.command = name.substr(kExec.size()), .scenario = resolved_toml(scenario)}, options.threads);
}

}  // namespace twinrun
