// The parts of diff_files: files of ours (diff.cc), and those of others.
#pragma once

#include "harness/diff/diff.h"

namespace twinrun {

Result<Diff> diff_of_ours(const std::string& a, const std::string& b, bool verify);

}  // namespace twinrun
