// Scenario -> TOML with every key that applies, and the digest of what decides the bits.
#include <fmt/format.h>

#include "scenarios/keys.h"
#include "scenarios/scenario.h"

namespace twinrun {
namespace {

// Keys that say what a run is called, where its data lies or how fast it is read.
bool decides_bits(std::string_view section, std::string_view key) {
  if (section.empty()) return key != "name" && key != "description";
  return section != "data" || !contains_name("dir|cache|parallel_calls|prefetch", key);
}

template <typename Owner>
std::string lines(const Owner& owner, std::string_view section, bool all) {
  std::string out;
  for (const Key<Owner>& key : keys<Owner>()) {
    if (!applies(owner, key) || (!all && !decides_bits(section, key.name))) continue;
    out += fmt::format("{} = {}\n", key.name, toml_value(owner, key));
  }
  return out;
}

std::string dump(const Scenario& scenario, bool all) {
  std::string out = lines(scenario, "", all);
  const bool imported = !scenario.imported.empty();
  if (imported) out += "\n[program]\n" + scenario.imported;
  each_section(scenario, [&](std::string_view section, const auto& part) {
    if (imported && section != "train" && section != "tpu" && section != "diagnose") return true;
    if constexpr (std::is_same_v<std::decay_t<decltype(part)>, ModelSpec>) {
      for (const LayerSpec& layer : part.layers) {
        out += "\n[[model.layers]]\n" + lines(layer, "model.layers", all);
      }
    } else {
      out += fmt::format("\n[{}]\n", section) + lines(part, section, all);
    }
    return true;
  });
  return out;
}

}  // namespace

std::string resolved_toml(const Scenario& scenario) { return dump(scenario, true); }

Digest scenario_digest(const Scenario& scenario) {
  const std::string text = dump(scenario, false);
  return digest_bytes(text.data(), text.size());
}

}  // namespace twinrun
