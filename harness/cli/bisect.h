// Shared by the four axes of `twinrun bisect` on the command line; one .cc file per pair of axes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/bisect/divergence.h"
#include "harness/cli/options.h"

namespace twinrun::cli {

extern const Verb kBisectAxes[4];

Result<int> bisect_step(const Args& args);
Result<int> bisect_op(const Args& args);
Result<int> bisect_config(const Args& args);
Result<int> bisect_rev(const Args& args);

// After Ctrl-C every error counts as an interruption.
template <typename T>
Result<T> unless_stopped(Result<T> result, const StopFlag& stop) {
  return std::move(result).with_kind(stop.load() ? Error::Kind::kInterrupted : Error::Kind::kInput);
}

// Splits the arguments at "--" into options and a command that is run unchanged.
std::pair<Args, Args> split_command(const Args& args);

}  // namespace twinrun::cli
