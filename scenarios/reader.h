// TOML tree -> Scenario, in four steps that scenario.cc calls in turn. Each stops at the first
// error, but for what `twinrun check` has rules for (Refusal): a reader that asks for those gets them all, and the scenario too.
//
//   TWINRUN_ASSIGN(const ReadScenario read, read_scenario("digits_cnn", {{"train.batch", "100"}}));
//   read.refused[0].kind == Refusal::kUnevenBatch;    read.source.where("tpu", "clipping");
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "scenarios/scenario.h"
#include "scenarios/toml_reader.h"

namespace twinrun {

// What a training run cannot do without and a TPU's stack has words of its own for.
enum class Refusal : uint8_t { kNoBatch, kNoSteps, kUnevenBatch, kNoFullBatch };
struct Refused {
  Refusal kind;
  Error error;
};

// The tree, and how places in it are called.
struct Source {
  std::string file;
  Node root;
  std::vector<Refused>* refused = nullptr;  // where refusals go instead of ending the reading

  Status refuse(Refusal kind, Error error) const;
  // "digits.toml:7: train.batch", or "--set train.batch".
  std::string where(const Node& node, std::string_view path) const;
  // The same for a path that may be absent: then its section, then the file.
  std::string where(std::string_view section, std::string_view key) const;
  std::string where_layer(size_t index, const LayerSpec& layer, std::string_view key) const;
};

struct ReadScenario {
  Scenario scenario;  // with batch or steps 0 where they are refused as missing
  Source source;
  std::vector<Refused> refused;
};
// load_scenario for who has rules of their own for what is refused.
Result<ReadScenario> read_scenario(std::string_view name_or_path, const Overrides& overrides = {});

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
