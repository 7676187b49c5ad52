// "Did you mean": only for what may be a typo, unlike nearest() of program/base/names.h, which
// always answers.
//
//   did_you_mean("bacth", {"batch", "steps"});    // "did you mean \"batch\"?"
//   did_you_mean("zebra", {"batch", "steps"});    // ""
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

// The nearest candidate within a third of the longer word's length (at least 1), case ignored.
std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace twinrun
