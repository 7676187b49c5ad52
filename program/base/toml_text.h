// The one place that includes toml++, for texts that nobody vouches for.
//
//   Result<toml::table> table = parse_toml_text(text, "model.toml");
//
// toml++ 3.3 asserts what a text may break ("[$]"), recurses once per part of a dotted key, and has
// undefined behaviour at some characters beyond ASCII outside of strings. Here all three are errors.
#pragma once

#include <string_view>

#include "program/base/result.h"

namespace twinrun {
[[noreturn]] void fail_toml_assertion();
}  // namespace twinrun

// The settings of a header-only library must be the same in every file, or they clash at link time.
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#ifdef NDEBUG
#error "NDEBUG takes away the checks of toml++, on which parse_toml_text depends"
#endif
#define TOML_ASSERT(condition) \
  ((condition) ? static_cast<void>(0) : ::twinrun::fail_toml_assertion())
#include <toml++/toml.h>

namespace twinrun {

constexpr int kMostKeyParts = 64;

// Errors: not valid TOML, with file and line.
Result<toml::table> parse_toml_text(std::string_view text, std::string_view file);

}  // namespace twinrun
