// The keys in which two scenarios differ, as changes that can be made one by one. They are the
// elements of the search over scenarios (scenarios.h).
//
//   const std::vector<KeyChange> changes = key_changes(a, b);
//   auto both = with_changes(a, changes, {0, 3});   // error: the combination is no valid scenario
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "scenarios/scenario.h"

namespace twinrun::bisect {

struct KeyChange {
  std::string key;                 // "optimizer.lr", "model.layers.dense1.units", "model.layers"
  std::string from, to;            // TOML
  std::vector<std::string> along;  // "KEY=VALUE" of keys that only B's kind has; set with this key
  std::function<void(Scenario&)> apply;
  // The arguments of --set that make the change: the key itself, then `along`.
  std::vector<std::string> settings() const;
};

// All differences except in names and descriptions, in the order of a resolved scenario. A key that
// the kind on one side does not have (optimizer.momentum of sgd) is no change of its own. Layers
// are compared key by key if both models have the same kinds under the same names, else as a whole.
std::vector<KeyChange> key_changes(const Scenario& a, const Scenario& b);

// A with some of the changes, checked like a scenario file.
Result<Scenario> with_changes(const Scenario& a, const std::vector<KeyChange>& changes,
                              const std::vector<int>& which);

}  // namespace twinrun::bisect
