// The engines by name. A new one is a folder and a line here.
#include <array>

#include "backends/backend.h"
#include "backends/cpu/cpu.h"
#include "backends/oracle/f64_engine.h"
#include "backends/tpu/tpu.h"
#include "program/base/names.h"

namespace twinrun {
namespace {

struct Entry {
  std::string_view name;
  std::unique_ptr<Backend> (*make)(const BackendOptions&);
};
constexpr std::array kBackends = {Entry{"cpu", make_cpu_backend},
                                  Entry{"cpu:f64", make_f64_backend},
                                  Entry{"tpu", make_tpu_backend}};

}  // namespace

std::string_view to_string(DotPrecision precision) {
  constexpr std::string_view kNames[] = {"f32", "default", "high", "highest"};
  return kNames[static_cast<size_t>(precision)];
}

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (const Entry& entry : kBackends) names.emplace_back(entry.name);
  return names;
}

Result<std::unique_ptr<Backend>> make_backend(std::string_view name,
                                              const BackendOptions& options) {
  for (const Entry& entry : kBackends) {
    if (entry.name == name) return entry.make(options);
  }
  const std::vector<std::string> names = backend_names();
  return Error{"unknown engine '" + std::string(name) + "' (known: " + join(names, ", ") + ")", "",
               "did you mean '" + nearest(name, names) + "'?"};
}

}  // namespace twinrun
