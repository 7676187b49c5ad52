// twinrun record and twinrun verify of a step of PyTorch: does this device compute what a healthy one
// did?
#pragma once

#include <optional>

#include "harness/cli/options.h"

namespace twinrun::cli {

// Hands a command over that names a script, which is no value of an option: Python records it.
std::optional<Error> given_to_python(const std::string& verb, const Args& args,
                                     const Options& options);
Result<int> record_known(const Parsed& parsed);
Result<int> verify_known_step(const Parsed& parsed, const std::string& known,
                              const std::string& trace);

}  // namespace twinrun::cli
