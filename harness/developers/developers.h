// The verbs of twinrun_dev, the program for those who develop and package twinrun. It is built from
// the command line's own functions.
#pragma once

#include "harness/cli/options.h"

namespace twinrun::cli {

Result<int> drill_verb(const Args& args);
Result<int> serve_verb(const Args& args);
Result<int> completion_verb(const Args& args);
Result<int> manual_verb(const Args& args);

}  // namespace twinrun::cli
