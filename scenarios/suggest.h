// "Did you mean" suggestions in the words of TOML.
//
//   did_you_mean("bacth", {"batch", "steps"});    // "did you mean \"batch\"?"
//   did_you_mean("zebra", {"batch", "steps"});    // ""
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

// meant() of program/base/names.h, or "".
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace twinrun
