// Formulas in which frameworks differ, by framework: what the keys mean whose value is "auto". The table is that of
// docs/formulas.md, with its sources.
//
//   by_conventions(scenario, "epsilon_form");  // "torch" under conventions = "pytorch" and optimizer.kind = "adam"
#pragma once

#include <string>
#include <string_view>

#include "scenarios/scenario.h"

namespace twinrun {

// The names that `conventions` takes, but for "auto": "tensorflow|keras2|keras3|pytorch|optax".
std::string_view convention_names();
// "PyTorch" for "pytorch".
std::string_view framework_of(std::string_view conventions);

// What an [optimizer] key (epsilon_form, decay_form, clip_form) or batch norm's `variance` stands for where it is "auto".
std::string_view by_conventions(const Scenario& scenario, std::string_view key);

}  // namespace twinrun
