// Sharding causes that the drill knows how to bring about.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "harness/experiment.h"

namespace twinrun::drill {

// A cause that a scenario's own keys bring about.
struct DeclaredCause {
  std::string name;     // as the diagnosis calls it
  Overrides overrides;  // on top of the scenario
};
std::vector<DeclaredCause> declared_causes(const Scenario& scenario);

// A cause that only a subject with another program has.
struct HiddenCause {
  std::string name;
  std::function<Sharding(Sharding)> change;
};
// Those that can change what this experiment's sharded program means.
std::vector<HiddenCause> hidden_causes(const Experiment& experiment);

}  // namespace twinrun::drill
