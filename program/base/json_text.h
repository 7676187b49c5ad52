// The one place that parses JSON texts that nobody vouches for. A first pass over the text counts
// and allocates nothing; only a text within the limits is then built in memory.
//
//   const auto report = parse_json_text(text);
//   if (!report) return Error{report.error().what, "report.json", ""};
//   report->at("runs");                                  // may throw: what it holds is not checked
//   json_integer<int32_t>(report->at("cores"));          // throws too if it is 1e300 or 2.5
//
// The limits keep the memory below about 400 MB, and the depth below what the library's recursion
// (dump, comparison, destruction) needs stack for.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "program/base/result.h"

namespace twinrun {

struct JsonLimits {
  size_t depth = 64;           // objects and arrays inside each other
  size_t values = 4'000'000;   // of all objects and arrays together
  size_t members = 1'000'000;  // of all objects together
};
// For texts whose order of keys is kept: there, finding a key takes as long as an object has keys.
inline constexpr JsonLimits kOrderedJsonLimits{.members = 1000};

// Errors (without a place): not JSON, and at which byte; a limit that is exceeded.
Result<nlohmann::json> parse_json_text(std::string_view text, const JsonLimits& limits = {});
Result<nlohmann::ordered_json> parse_ordered_json_text(
    std::string_view text, const JsonLimits& limits = kOrderedJsonLimits);

// The value if it is an integer that T holds. The library's own get() would convert a fraction or
// 1e300, which is undefined. Throws the exception that get() throws for a text.
template <typename T, typename Json>
T json_integer(const Json& value) {
  const bool fits =
      value.is_number_unsigned()
          ? std::in_range<T>(value.template get<uint64_t>())
          : value.is_number_integer() && std::in_range<T>(value.template get<int64_t>());
  if (!fits) {
    const std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    throw Json::type_error::create(302,
                                   "expected an integer of " +
                                       std::to_string(std::numeric_limits<T>::digits) +
                                       " bits, found " + text.substr(0, 40),
                                   &value);
  }
  return static_cast<T>(value.template get<int64_t>());
}

}  // namespace twinrun
