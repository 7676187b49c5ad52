// An engine by its name, for a scenario: one of ours, a command that speaks docs/engine-protocol.md, or XLA behind a plugin.
//
//   auto engine = make_engine("exec:python3 adapters/pytorch/engine.py", scenario, backend_options(scenario, 2));
//   auto xla = make_engine("xla:/usr/lib/xla_cpu_pjrt.so", scenario, backend_options(scenario, 2));
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backends/backend.h"
#include "scenarios/scenario.h"

namespace twinrun {

Result<std::unique_ptr<Backend>> make_engine(const std::string& name, const Scenario& scenario,
                                             const BackendOptions& options);

// One that may not be there, or not start: exec:, xla.
bool is_foreign_engine(std::string_view name);

}  // namespace twinrun
