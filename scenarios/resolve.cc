// Scenario -> TOML with every key that applies, and the digest of the keys that decide the bits of
// a run.
#include <fmt/format.h>

#include "scenarios/keys.h"
#include "scenarios/scenario.h"

namespace twinrun {
namespace {

// False for keys that only name a run, locate its data, set how fast the data is read or are of a
// modelled profile.
bool decides_bits(std::string_view section, std::string_view key) {
  if (section.empty()) return key != "name" && key != "description";
  if (section == "tpu" && contains_name("slow_core|slow_core_factor|link_factor", key))
    return false;
  return section != "data" || !contains_name("dir|cache|parallel_calls|prefetch", key);
}

// Keys that were added later. Those at their defaults do not enter the digest, so that the digests
// of older scenarios stay as they were.
constexpr std::string_view kAddedKeys =
    "conventions|scale|offset|channels|batch_offset|over_classes|input|ignored|velocity|gradient_"
    "scale|epsilon_form|"
    "bias_correction|correction_lead|amsgrad|dampening|frozen|decay_form|decay_of|clip_form|l2_of|"
    "schedule_offset|count_padding|flipped|order|scaled|keeps|variance|statistics|unbiased|"
    "transposed|label_offset|fill|unused|scaled_by|head_units|terms|factor|padding_index|epsilon_"
    "to|"
    "axes|stopped|trust|ema_of|nesterov_form|metric|accuracy_margin|max_seeds|scaling|l2_terms|"
    "shards|"
    "remainder|streams|rate_scaling";
template <typename Owner>
bool added_later(const Owner& owner, const Key<Owner>& key) {
  static const Owner initial;
  if constexpr (std::is_same_v<Owner, OptimizerConfig>) {
    if (key.name == "weight_decay" && owner.weight_decay == 0)
      return !contains_name("adamw|lars|lamb", owner.kind);
    if (key.name == "nesterov" && !owner.nesterov) return owner.kind.starts_with("adam");
    if (key.name == "initial_accumulator")
      return owner.kind == "rmsprop" && owner.initial_accumulator == 1;
  }
  if constexpr (std::is_same_v<Owner, LayerSpec>) {
    if (key.name == "input") return false;  // an older key; kAddedKeys means the loss's `input`
  }
  return contains_name(kAddedKeys, key.name) && toml_value(owner, key) == toml_value(initial, key);
}

template <typename Owner>
std::string lines(const Owner& owner, std::string_view section, bool all) {
  std::string out;
  for (const Key<Owner>& key : keys<Owner>()) {
    if (!applies(owner, key)) continue;
    if (!all && (!decides_bits(section, key.name) || added_later(owner, key))) continue;
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
