// twinrun diagnose --a --b: one script under two installations that cannot share a process.
#pragma once

#include "harness/cli/options.h"

namespace twinrun::cli {

void add_side_options(Options& options);  // --a, --b, --steps, --first
Result<int> diagnose_sides(const Parsed& parsed);

}  // namespace twinrun::cli
