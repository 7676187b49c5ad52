// "Did you mean" suggestions for likely typos only. nearest() of program/base/names.h always
// returns a name.
//
//   did_you_mean("bacth", {"batch", "steps"});    // "did you mean \"batch\"?"
//   did_you_mean("zebra", {"batch", "steps"});    // ""
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

// Suggests the candidate with the least edit distance, if that is at most a third of the longer
// word's length (at least 1); case is ignored. Else "".
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace twinrun
