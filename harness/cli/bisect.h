// Shared by the four axes of `twinrun bisect` on the command line; one .cc file per pair of axes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/bisect/divergence.h"
#include "harness/cli/cli.h"

namespace twinrun::cli {

int bisect_step(const Args& args);
int bisect_op(const Args& args);
int bisect_config(const Args& args);
int bisect_rev(const Args& args);

// Prints the error; after Ctrl-C exits as interrupted, whatever the error is.
inline int failed(const Error& error, const StopFlag& stop) {
  return fail(error, stop.load() ? kExitInterrupted : kExitUsage);
}

// Splits the arguments at "--" into options and a command that is run unchanged.
std::pair<Args, Args> split_command(const Args& args);

}  // namespace twinrun::cli
