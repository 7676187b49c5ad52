// "Did you mean" suggestions in the words of TOML.
//
//   suggested("bacth", {"batch", "steps"});    // "did you mean \"batch\"?"
//   suggested("zebra", {"batch", "steps"});    // ""
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

// meant() of program/base/names.h, or "".
std::string suggested(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace twinrun
