// An engine by its name, for a scenario: one of ours, or a command that speaks docs/engine-protocol.md.
//
//   auto engine = make_engine("exec:python3 adapters/pytorch/engine.py", scenario, backend_options(scenario, 2));
// Every error of the latter, from its start on, has a place that begins with "exec:" (kExecPlace).
#pragma once

#include <memory>
#include <string>

#include "backends/backend.h"
#include "harness/progress.h"
#include "scenarios/scenario.h"

namespace twinrun {

Result<std::unique_ptr<Backend>> make_engine(const std::string& name, const Scenario& scenario,
                                             const BackendOptions& options,
                                             Progress* progress = nullptr);

}  // namespace twinrun
