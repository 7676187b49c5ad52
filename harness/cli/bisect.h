// Shared by the axes of `twinrun bisect` on the command line; one .cc file per pair of axes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "harness/bisect/divergence.h"
#include "harness/cli/options.h"
#include "harness/search/judge.h"

namespace twinrun::cli {

extern const Verb kBisectAxes[5];

Result<int> bisect_step(const Args& args);
Result<int> bisect_op(const Args& args);
Result<int> bisect_config(const Args& args);
Result<int> bisect_rev(const Args& args);
Result<int> bisect_package(const Args& args);

// Options of the axes that execute candidates, and their values.
void add_search_options(Options& options, const char* folder, int repeats, int retries = 3);
Result<bisect::Repeats> repeats_of(const Parsed& parsed);
std::string counts_text(int64_t executions, int64_t testable, int64_t untestable, int64_t bound);

// After Ctrl-C every error counts as an interruption.
template <typename T>
Result<T> unless_stopped(Result<T> result, const StopFlag& stop) {
  return std::move(result).with_kind(stop.load() ? Error::Kind::kInterrupted : Error::Kind::kInput);
}

// Splits the arguments at "--" into options and a command that is run unchanged.
std::pair<Args, Args> split_command(const Args& args);

}  // namespace twinrun::cli
