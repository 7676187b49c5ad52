// Cuts a core's block from a user's array, row by row.
#include "program/import/core_part.h"

#include <cstring>

namespace twinrun {

Tensor part_of(const Tensor& whole, const CorePart& part, const Dims& dims, size_t core) {
  Tensor out = Tensor::empty({whole.dtype(), dims});
  if (out.elements() == 0) return out;
  const Dims &from = whole.dims(), &begin = part.begin[core];
  const size_t rank = from.size();
  Dims block(rank - dims.size(), 1);
  block.insert(block.end(), dims.begin(), dims.end());
  const int64_t run = rank == 0 ? 1 : block.back();
  const size_t bytes = static_cast<size_t>(run) * size_of(whole.dtype());
  Dims at(rank, 0);
  for (int64_t row = 0; row < out.elements() / run; ++row) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) offset = offset * from[d] + begin[d] + at[d];
    std::memcpy(out.raw() + static_cast<size_t>(row) * bytes,
                whole.raw() + static_cast<size_t>(offset) * size_of(whole.dtype()), bytes);
    for (size_t d = rank; d-- > 1;) {
      if (++at[d - 1] < block[d - 1]) break;
      at[d - 1] = 0;
    }
  }
  return out;
}

}  // namespace twinrun
