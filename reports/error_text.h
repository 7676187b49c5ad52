// An error as people see it. A part of it may repeat a name or a key of a foreign file, which can
// be of any length and hold anything.
//
//   fmt::print(stderr, "twinrun: {}\n", text::printed(status.error()));
#pragma once

#include <string>

#include "program/base/result.h"

namespace twinrun::text {

// Its message as lines without control characters (clean_lines), each part cut to 16,000 bytes.
std::string printed(const Error& error);

}  // namespace twinrun::text
