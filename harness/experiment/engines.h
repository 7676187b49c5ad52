// Makes an engine for a scenario from its name: one of our own, a command that speaks
// docs/reference/engine-protocol.md. On the data's path: Scenario and name
// -> Backend.
//
//   const BackendOptions options = backend_options(scenario, 2);
//   auto engine = make_engine("exec:python3 adapters/engines/pytorch/engine.py", scenario, options);
//
// Every error of the latter, from its start on, is Error::of_foreign_engine().
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "backends/core/backend.h"
#include "harness/host/progress.h"
#include "scenarios/scenario.h"

namespace twinrun {

// The options for the engine of a scenario: precision and poison from [tpu].
BackendOptions backend_options(const Scenario& scenario, int threads);

Result<std::unique_ptr<Backend>> make_engine(const std::string& name, const Scenario& scenario,
                                             const BackendOptions& options,
                                             Progress* progress = nullptr);

// Whether the name is of a foreign engine, which may be missing, or fail to start: exec:.
bool is_foreign_engine(std::string_view name);
// Errors: faults are requested of a foreign engine or of the oracle, which take none.
Status check_takes_faults(std::string_view name, bool faults);

}  // namespace twinrun
