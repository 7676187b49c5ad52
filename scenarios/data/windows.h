// Cuts a text of tokens into samples for a language model: the features are T tokens, the labels
// are the token after each of them. Windows do not overlap, except that the last label of one is
// the first feature of the next. Tokens at the end that do not fill a window are left out.
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

// T is request.window. `what` names the text in the error for a text that is too short.
Result<Samples> windows(const DataRequest& request, std::span<const int32_t> tokens,
                        const std::string& what);

// Decodes UTF-8 strictly (Unicode 15, table 3-7). The error names the invalid byte and its line.
Result<std::vector<int32_t>> code_points(std::string_view text);

// Replaces each value by its rank among the distinct values. Returns the number of distinct values.
int64_t rank_values(std::vector<int32_t>& values);

}  // namespace twinrun::data
