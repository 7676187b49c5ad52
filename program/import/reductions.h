// What the rules of reduce and of reduce-window share: the functions that they apply.
//
//   if (starts_neutral(s, s.x[1], s.region(), dtype, s.hlo_type(0))) ..      // add from 0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "program/import/integers.h"

namespace twinrun {

// The op that a region applies ("add"), for elements of this type; nothing for any other region.
std::optional<OpKind> kind_of_region(const std::string& region, DType dtype);
// What changes nothing: 0 of add, -inf of maximum; NaN if there is none.
double neutral_of(const std::string& region, DType dtype, std::string_view hlo);
bool starts_neutral(const Site& s, ValueId init, const std::string& region, DType dtype,
                    std::string_view hlo);

}  // namespace twinrun
