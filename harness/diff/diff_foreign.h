// Internal to harness/diff: the part of diff_files for two runs or two checkpoints of twinrun
// (diff.cc), called by diff_foreign.cc, which handles all other files.
#pragma once

#include "harness/diff/diff.h"

namespace twinrun {

Result<Diff> diff_of_ours(const std::string& a, const std::string& b, bool verify);

}  // namespace twinrun
