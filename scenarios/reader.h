// TOML tree -> Scenario, in four steps that scenario.cc calls in turn. Each step stops at the first
// error. The exceptions are the errors for which `twinrun check` has rules of its own (Refusal):
// read_scenario collects those and goes on, so that it returns all of them and the scenario.
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

// Errors for which `twinrun check` gives the TPU stack's own message.
enum class Refusal : uint8_t { kNoBatch, kNoSteps, kUnevenBatch, kNoFullBatch };
struct Refused {
  Refusal kind;
  Error error;
};

// The tree, and the names of locations in it for messages.
struct Source {
  std::string file;
  Node root;
  // If set, refusals are collected here; otherwise they are errors that end the reading.
  std::vector<Refused>* refused = nullptr;

  Status refuse(Refusal kind, Error error) const;
  // "digits.toml:7: train.batch", or "--set train.batch".
  std::string where(const Node& node, std::string_view path) const;
  // The same for a key that may be absent: then the line of its section, else only the file.
  std::string where(std::string_view section, std::string_view key) const;
  std::string where_layer(size_t index, const LayerSpec& layer, std::string_view key) const;
};

struct ReadScenario {
  Scenario scenario;  // batch or steps is 0 where it is refused as missing
  Source source;
  std::vector<Refused> refused;
};
// Like load_scenario, for callers that handle refusals themselves.
Result<ReadScenario> read_scenario(std::string_view name_or_path, const Overrides& overrides = {});

// Writes --set KEY=VALUE into the tree. A layer is addressed by name or number:
// model.layers.dense1.units.
Status apply_overrides(Source& source, const Overrides& overrides);
// An unknown key anywhere is an error.
Status check_names(const Source& source);
// Reads the values. Checks their types and ranges, and that each key belongs to its kind.
Status read_values(const Source& source, Scenario& scenario);
// Checks that involve several keys; fills in the defaults that depend on other keys.
Status validate(const Source& source, Scenario& scenario);

// The name of each entry of model.layers: the given one, else its kind without '2d' and a count
// from 1 within that kind, such as "dense1".
std::vector<std::string> layer_names(const Node& layers);
// model.layers of the tree; null when absent or not an array.
const Node* find_layers(const Node& root);

}  // namespace twinrun
