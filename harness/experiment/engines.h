// An engine by its name, for a scenario: one of ours, a command that speaks docs/engine-protocol.md, or XLA behind a plugin.
//
//   auto engine = make_engine("exec:python3 adapters/pytorch/engine.py", scenario, backend_options(scenario, 2));
//   auto xla = make_engine("xla:/usr/lib/xla_cpu_pjrt.so", scenario, backend_options(scenario, 2));
// Every error of the last two, from their start on, has such a name for a place.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backends/core/backend.h"
#include "harness/host/progress.h"
#include "scenarios/scenario.h"

namespace twinrun {

// The options of a scenario's engine: precision and poison from [tpu].
BackendOptions backend_options(const Scenario& scenario, int threads);

Result<std::unique_ptr<Backend>> make_engine(const std::string& name, const Scenario& scenario,
                                             const BackendOptions& options,
                                             Progress* progress = nullptr);

// One that may not be there, not start or fail: exec:, xla.
bool is_foreign_engine(std::string_view name);
// Faults are put into ours but the oracle.
Status check_takes_faults(std::string_view name, bool faults);
// Whether the error is one of such an engine's.
bool of_foreign_engine(const Error& error);

}  // namespace twinrun
