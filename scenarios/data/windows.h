// A text as tokens, cut into samples for a language model: features are T tokens, labels the token
// after each of them. Windows do not overlap but for the token that is a label here and a feature
// there; what does not fill a window at the end is left out.
//
//   TWINRUN_ASSIGN(Samples s, windows(request, tokens, "DIR/input.txt: the training part"));
//   s.features;                               // i32[n, T]: tokens k*T .. k*T+T-1 of the text
//   s.labels;                                 // i32[n, T]: tokens k*T+1 .. k*T+T
#pragma once

#include <span>
#include <string>

#include "program/base/result.h"
#include "scenarios/data/feed.h"

namespace twinrun::data {

// T is request.window. `what` names the text in the error about one that is too short.
Result<Samples> windows(const DataRequest& request, std::span<const int32_t> tokens,
                        const std::string& what);

// Code points of UTF-8, strictly (Unicode 15, table 3-7). The error names the byte and its line.
Result<std::vector<int32_t>> code_points(std::string_view text);

// In place: each value becomes its rank among the distinct ones; returns how many those are.
int64_t rank_values(std::vector<int32_t>& values);

}  // namespace twinrun::data
