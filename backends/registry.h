// Makes one of our own engines from its name. Between the scenario, which names an engine, and
// Backend::prepare.
//
//   auto backend = make_backend("tpu", {.threads = 2, .tpu = {...}});
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

// Accepts "cpu", "cpu:f64", "tpu" and "honest:SEED" (a conforming variant drawn from SEED). The
// error for an unknown name suggests the nearest one.
Result<std::unique_ptr<Backend>> make_backend(std::string_view name, const BackendOptions& options);
std::vector<std::string> backend_names();

}  // namespace twinrun
