// twinrun record --trace, and twinrun verify --trace: does this device compute what a healthy one
// did?
#pragma once

#include "harness/cli/options.h"

namespace twinrun::cli {

Result<int> record_known(const Parsed& parsed);
Result<int> verify_known_step(const Parsed& parsed, const std::vector<std::string>& known);

}  // namespace twinrun::cli
