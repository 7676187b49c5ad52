// Which elements of a tensor are wrong, in words: a row, the last tile, every nth lane, the border of an image, or a share.
//
//   element_pattern({4, 784}, wrong)                        // "the last 16 of 784 along dimension 1"
//   element_pattern({4, 784}, wrong, {"row", "column"})     // "the last 16 of 784 columns"
#pragma once

#include <string>
#include <vector>

#include "program/base/types.h"

namespace twinrun {

// wrong: flat indices, ascending. "" for none. `axes`: names of the dimensions; without one, or where it is "", they are numbered.
std::string element_pattern(const Dims& dims, const std::vector<int64_t>& wrong,
                            const std::vector<std::string>& axes = {});

// Regions with a name that hold all of `wrong`, and more, largest first: all of the tensor; boxes of rows, columns, tiles or every nth
// of them; a stretch in memory. An element may be wrong by less than can be seen: then it lies in one of them.
std::vector<std::vector<int64_t>> regions_around(const Dims& dims,
                                                 const std::vector<int64_t>& wrong);

// "[2,0,1]" of a flat index.
std::string index_text(const Dims& dims, int64_t flat);

}  // namespace twinrun
