// Formulas that differ by default between frameworks: the value that a scenario key stands for
// where it is "auto". docs/reference/formulas.md has the same table, with its sources. scenarios/
// uses it when it turns a Scenario into a Program.
//
//   by_conventions(scenario, "epsilon_form");  // "torch" for Adam under conventions = "pytorch"
#pragma once

#include <string>
#include <string_view>

#include "scenarios/scenario.h"

namespace twinrun {

// The values of the key `conventions` other than "auto": "tensorflow|keras2|keras3|pytorch|optax".
std::string_view convention_names();
// The framework's name for messages: "PyTorch" for "pytorch".
std::string_view framework_of(std::string_view conventions);

// The value of an [optimizer] key (epsilon_form, velocity, nesterov_form, decay_form, clip_form) or
// of batch norm's `variance` where it is "auto".
std::string_view by_conventions(const Scenario& scenario, std::string_view key);

}  // namespace twinrun
