// TOML tree -> Scenario, in four steps that scenario.cc calls in turn. Each stops at the first
// error.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scenarios/scenario.h"
#include "scenarios/toml_reader.h"

namespace twinrun {

// The tree, and how places in it are called.
struct Source {
  std::string file;
  Node root;

  // "digits.toml:7: train.batch", or "--set train.batch".
  std::string where(const Node& node, std::string_view path) const;
  // The same for a path that may be absent: then its section, then the file.
  std::string where(std::string_view section, std::string_view key) const;
  std::string where_layer(size_t index, const LayerSpec& layer, std::string_view key) const;
};

// --set KEY=VALUE into the tree; a layer is called by name or number: model.layers.dense1.units.
Status apply_overrides(Source& source, const Overrides& overrides);
// Unknown keys anywhere.
Status check_names(const Source& source);
// Values: type, range, and whether the key belongs to its kind.
Status read_values(const Source& source, Scenario& scenario);
// What needs more than one key; fills in the defaults that depend on others.
Status validate(const Source& source, Scenario& scenario);

// The name of each entry of model.layers: as given, else kind without '2d' and its count among that
// kind.
std::vector<std::string> layer_names(const Node& layers);
// model.layers of the tree; null when absent or not an array.
const Node* find_layers(const Node& root);

}  // namespace twinrun
