// The table of our own engines. To add an engine, add its folder and a row to kBackends.
#include "backends/registry.h"

#include <array>
#include <charconv>

#include "backends/cpu/cpu.h"
#include "backends/oracle/f64_engine.h"
#include "backends/tpu/tpu.h"
#include "backends/variants/variant.h"
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

// "honest:SEED": a conforming variant, at the precision that the scenario sets for its TPU.
constexpr std::string_view kConforming = "honest:";

std::unique_ptr<Backend> make_conforming(std::string_view seed, const BackendOptions& options) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(seed.data(), seed.data() + seed.size(), number);
  if (seed.empty() || error != std::errc{} || end != seed.data() + seed.size()) return nullptr;
  return make_variant_backend(draw_variant(number, options.tpu.precision), options);
}

}  // namespace

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
  if (name.starts_with(kConforming)) {
    if (auto conforming = make_conforming(name.substr(kConforming.size()), options))
      return conforming;
    return Error{"the engine '" + std::string(name) + "' has no seed", "",
                 "name a conforming variant by its seed: honest:17"};
  }
  std::vector<std::string> names = backend_names();
  names.insert(names.end(), {"honest:SEED", "exec:COMMAND"});
  const bool was_xla = name == "xla" || name.starts_with("xla:");
  return Error{"unknown engine '" + std::string(name) + "' (known: " + join(names, ", ") + ")", "",
               was_xla ? "XLA is the engine of JAX: 'exec:python3 adapters/engines/jax/engine.py' "
                         "(docs/guides/import.md#xla-as-an-engine)"
               : name.find_first_of(" /") != std::string_view::npos
                   ? "a command is named exec:" + std::string(name)
                   : did_you_mean(name, names)};
}

}  // namespace twinrun
