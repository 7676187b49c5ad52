// Our own engines by name.
//
//   auto backend = make_backend("tpu", {.threads = 2, .tpu = {...}});
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

// "cpu", "cpu:f64", "tpu". An unknown name: error with the nearest one.
Result<std::unique_ptr<Backend>> make_backend(std::string_view name, const BackendOptions& options);
std::vector<std::string> backend_names();

}  // namespace twinrun
