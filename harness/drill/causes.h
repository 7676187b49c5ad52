// How a drill brings about a cause of sharding: by the scenario's own keys, or by a subject that secretly runs another program.
//
//   declared_causes(scenario)[0].overrides;          // {{"tpu.reduction", "sum"}}
//   hidden_causes(experiment);                       // names in harness/sharding/causes.h that the experiment's sharding has not
#pragma once

#include <string>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun::drill {

struct DeclaredCause {
  std::string name;
  Overrides overrides;  // on top of the scenario
};
std::vector<DeclaredCause> declared_causes(const Scenario& scenario);

std::vector<std::string> hidden_causes(const Experiment& experiment);

}  // namespace twinrun::drill
