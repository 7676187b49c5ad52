// Names in error messages: lists of them, and the valid name that is nearest to a wrong one.
//
//   nearest("lable", {"label", "image"}) == "label";       // optimal string alignment distance
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

std::string join(const std::vector<std::string>& parts, std::string_view separator);
std::string lower_case(std::string_view text);  // ASCII letters only
// Number of insertions, deletions, substitutions and swaps of neighbours between the two. Of what
// lies between a common beginning and a common end only 64 bytes are compared; more bytes count as
// insertions.
int edit_distance(std::string_view a, std::string_view b);
// The closest of `known` ("" if it is empty); of equally close names the first.
std::string nearest(std::string_view name, const std::vector<std::string>& known);
// The known name that is likely meant, "" if none is: one that `name` begins, or is a part of, or that
// begins or is a part of it (three letters and more; in this order), else the closest within a third
// of the longer one's length.
std::string meant(std::string_view name, const std::vector<std::string>& known);
// "did you mean 'label'?", or "".
std::string did_you_mean(std::string_view name, const std::vector<std::string>& known);

}  // namespace twinrun
