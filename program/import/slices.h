// Windows of arrays, read and overwritten, from starts that are constants or computed: what
// dynamic-slice, dynamic-update-slice, gather and scatter of one window share.
//
//   const ValueId row = read_window(s, x, {start, zero}, {1, 8});      // x[start:start+1, 0:8]
#pragma once

#include <optional>
#include <vector>

#include "program/import/site.h"

namespace twinrun {

// The starts as numbers, if all are known. kNoValue is a start of 0.
std::optional<Dims> known_starts(Site& s, const std::vector<ValueId>& starts);
// Starts are scalars, one for each dimension of x, and are clamped so that the window fits. With
// constant starts these are slices; elsewhere rows are gathered along each axis that is cut.
ValueId read_window(Site& s, ValueId x, const std::vector<ValueId>& starts, const Dims& sizes);
// x with `update` at the window. With constant starts these are concatenations, elsewhere a select.
ValueId overwrite_window(Site& s, ValueId x, ValueId update, const std::vector<ValueId>& starts);

}  // namespace twinrun
