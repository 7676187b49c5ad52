// Compares two scenarios key by key and applies some of the differences.
#include "harness/bisect/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>

#include "scenarios/keys.h"

namespace twinrun::bisect {
namespace {

// KEY=VALUE for a command line. A quoted value loses its quotes if it is a plain word that --set
// reads as a string without them.
std::string setting(const std::string& key, const std::string& value) {
  const bool quoted = value.size() > 2 && value.front() == '"' && value.back() == '"';
  const std::string inner = quoted ? value.substr(1, value.size() - 2) : value;
  const bool word =
      quoted &&
      std::ranges::all_of(
          inner,
          [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0 || c == '_'; }) &&
      inner != "true" && inner != "false" && inner != "inf" && inner != "nan";
  return key + "=" + (word ? inner : value);
}

// Collects the changes in one table of keys. `owner` finds the table in a scenario.
template <typename Owner, typename Find>
void collect(const std::string& section, const Scenario& a, const Scenario& b, Find owner,
             std::vector<KeyChange>& changes) {
  const Owner &x = owner(a), &y = owner(b);
  const auto path = [&](std::string_view key) {
    return section.empty() ? std::string(key) : section + "." + std::string(key);
  };
  const auto copy = [owner, &y](const Key<Owner>& key) {
    return [owner, from = y, member = key.member](Scenario& to) {
      std::visit([&](auto m) { owner(to).*m = from.*m; }, member);
    };
  };
  for (const Key<Owner>& key : keys<Owner>()) {
    if (section.empty() && (key.name == "name" || key.name == "description")) continue;
    if (!applies(x, key) || !applies(y, key)) continue;
    const std::string from = toml_value(x, key), to = toml_value(y, key);
    if (from == to) continue;
    KeyChange change{path(key.name), from, to, {}, copy(key)};
    for (const Key<Owner>& other : keys<Owner>()) {
      if (applies(x, other) || !applies(y, other) || other.selector != key.name) continue;
      change.along.push_back(setting(path(other.name), toml_value(y, other)));
      change.apply = [first = std::move(change.apply), then = copy(other)](Scenario& to) {
        first(to);
        then(to);
      };
    }
    changes.push_back(std::move(change));
  }
}

bool same_layers(const ModelSpec& a, const ModelSpec& b) {
  return std::ranges::equal(a.layers, b.layers, [](const LayerSpec& x, const LayerSpec& y) {
    return x.kind == y.kind && x.name == y.name;
  });
}

// All layers as an array of inline tables, which --set accepts.
std::string layers_text(const ModelSpec& model) {
  std::string text;
  for (const LayerSpec& layer : model.layers) {
    std::string keys_text;
    for (const Key<LayerSpec>& key : keys<LayerSpec>()) {
      if (!applies(layer, key)) continue;
      keys_text +=
          fmt::format("{}{} = {}", keys_text.empty() ? "" : ", ", key.name, toml_value(layer, key));
    }
    text += fmt::format("{}{{ {} }}", text.empty() ? "" : ", ", keys_text);
  }
  return "[" + text + "]";
}

void collect_layers(const Scenario& a, const Scenario& b, std::vector<KeyChange>& changes) {
  if (!same_layers(a.model, b.model)) {
    changes.push_back({"model.layers",
                       layers_text(a.model),
                       layers_text(b.model),
                       {},
                       [model = b.model](Scenario& to) { to.model = model; }});
    return;
  }
  for (size_t i = 0; i < a.model.layers.size(); ++i) {
    collect<LayerSpec>(
        "model.layers." + a.model.layers[i].name, a,
        b, [i](auto& s) -> auto& { return s.model.layers[i]; }, changes);
  }
}

}  // namespace

std::vector<std::string> KeyChange::settings() const {
  std::vector<std::string> all{setting(key, to)};
  all.insert(all.end(), along.begin(), along.end());
  return all;
}

std::vector<KeyChange> key_changes(const Scenario& a, const Scenario& b) {
  std::vector<KeyChange> changes;
  collect<Scenario>(
      "", a, b, [](auto& s) -> auto& { return s; }, changes);
  collect<DataSpec>(
      "data", a, b, [](auto& s) -> auto& { return s.data; }, changes);
  collect_layers(a, b, changes);
  collect<LossSpec>(
      "loss", a, b, [](auto& s) -> auto& { return s.loss; }, changes);
  collect<OptimizerConfig>(
      "optimizer", a, b, [](auto& s) -> auto& { return s.optimizer; }, changes);
  collect<TrainSpec>(
      "train", a, b, [](auto& s) -> auto& { return s.train; }, changes);
  collect<TpuSpec>(
      "tpu", a, b, [](auto& s) -> auto& { return s.tpu; }, changes);
  collect<DiagnoseSpec>(
      "diagnose", a, b, [](auto& s) -> auto& { return s.diagnose; }, changes);
  return changes;
}

Result<Scenario> with_changes(const Scenario& a, const std::vector<KeyChange>& changes,
                              const std::vector<int>& which) {
  Scenario s = a;
  for (const int i : which) changes[static_cast<size_t>(i)].apply(s);
  return parse_scenario(resolved_toml(s), a.file);
}

}  // namespace twinrun::bisect
