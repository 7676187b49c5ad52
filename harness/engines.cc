#include "harness/engines.h"

#include <algorithm>

#include "backends/exec/exec_backend.h"
#include "backends/pjrt/pjrt_backend.h"

namespace twinrun {
namespace {

constexpr std::string_view kExec = "exec:", kXla = "xla", kXlaWith = "xla:";

bool is_xla(std::string_view name) { return name == kXla || name.starts_with(kXlaWith); }

}  // namespace

bool is_foreign_engine(std::string_view name) { return name.starts_with(kExec) || is_xla(name); }

Result<std::unique_ptr<Backend>> make_engine(const std::string& name, const Scenario& scenario,
                                             const BackendOptions& options) {
  if (name.starts_with(kExec)) {
    return make_exec_backend(
        {.command = name.substr(kExec.size()), .scenario = resolved_toml(scenario)},
        options.threads);
  }
  if (is_xla(name)) {
    return make_pjrt_backend({.plugin = name == kXla ? "" : name.substr(kXlaWith.size()),
                              .devices = std::max(8, static_cast<int>(scenario.tpu.cores)),
                              .threads = options.threads,
                              .precision = options.tpu.precision});
  }
  return make_backend(name, options);
}

}  // namespace twinrun
