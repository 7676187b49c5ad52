// Which elements of a tensor are wrong, in words: a row, the last tile, every nth lane, the border of an image, or a share.
//
//   element_pattern({4, 784}, wrong)      // "the last 16 of 784 along dimension 1"
#pragma once

#include <string>
#include <vector>

#include "program/base/types.h"

namespace twinrun {

// wrong: flat indices, ascending. "" for none.
std::string element_pattern(const Dims& dims, const std::vector<int64_t>& wrong);

// "[2,0,1]" of a flat index.
std::string index_text(const Dims& dims, int64_t flat);

}  // namespace twinrun
