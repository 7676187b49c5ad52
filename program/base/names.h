// Names in errors: lists and the nearest valid one.
//
//   nearest("lable", {"label", "image"}) == "label";       // optimal string alignment distance
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::string lower_case(std::string_view text);  // of ASCII
// Insertions, deletions, substitutions and swaps of neighbours.
int edit_distance(std::string_view a, std::string_view b);
// The closest of `known` ("" if empty), the first of equals.
std::string nearest(std::string_view name, const std::vector<std::string>& known);

}  // namespace twinrun
