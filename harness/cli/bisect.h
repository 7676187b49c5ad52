// What the four axes of `twinrun bisect` share on the command line; a file per pair of axes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/bisect/parting.h"
#include "harness/cli/cli.h"

namespace twinrun::cli {

int bisect_step(const Args& args);
int bisect_op(const Args& args);
int bisect_config(const Args& args);
int bisect_rev(const Args& args);

// An error that Ctrl-C made is none.
inline int failed(const Error& error, const StopFlag& stop) {
  return fail(error, stop.load() ? kExitInterrupted : kExitUsage);
}

// Words before and after "--": options, and a command that is run as it stands.
std::pair<Args, Args> split_command(const Args& args);

}  // namespace twinrun::cli
