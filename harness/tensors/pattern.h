// Describes in words which elements of a tensor are wrong: a row, the last tile, every nth lane,
// the border of an image, or a share of all. The instruments use it for their findings.
//
//   element_pattern({4, 784}, wrong)                     // "the last 16 of 784 along dimension 1"
//   element_pattern({4, 784}, wrong, {"row", "column"})  // "the last 16 of 784 columns"
#pragma once

#include <string>
#include <vector>

#include "program/base/types.h"

namespace twinrun {

// `wrong`: flat indices, ascending; the result is "" where there are none. `axes`: names of the
// dimensions; a dimension without a name, or whose name is "", is given by its number.
std::string element_pattern(const Dims& dims, const std::vector<int64_t>& wrong,
                            const std::vector<std::string>& axes = {});

// Regions that can be named and that contain all of `wrong` and more, largest first: the whole
// tensor; boxes of rows, columns, tiles or every nth of them; a contiguous stretch in memory. They
// matter because an element may be wrong by too little to be detected: it is then not in `wrong`,
// but lies in one of these regions. Empty for more than 8 dimensions.
std::vector<std::vector<int64_t>> regions_around(const Dims& dims,
                                                 const std::vector<int64_t>& wrong);

// The index of a flat position, and the same as text: "[2,0,1]".
Dims index_of(const Dims& dims, int64_t flat);
std::string index_text(const Dims& dims, int64_t flat);

}  // namespace twinrun
