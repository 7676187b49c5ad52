// How a drill introduces a cause of sharding: by the scenario's own keys, or by a subject that
// secretly runs another program.
//
//   declared_causes(scenario)[0].overrides;   // {{"tpu.reduction", "sum"}}
//   hidden_causes(experiment);                // causes absent from the experiment's sharding
#pragma once

#include <string>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun::drill {

struct DeclaredCause {
  std::string name;
  Overrides overrides;  // added to those of the case
};
std::vector<DeclaredCause> declared_causes(const Scenario& scenario);

// Names of possible causes (harness/sharding/causes.h) that the experiment's sharding does not
// have.
std::vector<std::string> hidden_causes(const Experiment& experiment);

}  // namespace twinrun::drill
