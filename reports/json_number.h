// Numbers in the JSON of all reports. JSON has no NaN and no infinity, so they are written as
// strings. Used inside reports/ only.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "program/base/bits.h"

namespace twinrun::json {

inline nlohmann::ordered_json number(double x) {
  if (std::isnan(x)) return "nan";
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  return x;
}

// The shortest decimal that reads back as the same binary32.
inline nlohmann::ordered_json number(float x) {
  if (!std::isfinite(x)) return number(static_cast<double>(x));
  const double shortest = std::strtod(fmt::format("{}", x).c_str(), nullptr);
  return to_bits(static_cast<float>(shortest)) == to_bits(x) ? shortest : static_cast<double>(x);
}

}  // namespace twinrun::json
