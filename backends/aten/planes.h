// Tensors of images: planes of pixels, what their calls have in common.
#pragma once

#include "backends/aten/definitions.h"

namespace twinrun::aten {

inline double half_unit(const Arguments& a) { return half_unit(a.view(0, "self").element); }
inline void need_floats(const Arguments& a) {
  if (!is_float(a.view(0, "self").element)) throw Undefined("averages of integers");
}

// A tensor whose last two dimensions are height and width, and the number of such planes.
struct Planes {
  int64_t n = 0, h = 0, w = 0;
  explicit Planes(const Dims& dims) {
    if (dims.size() < 2) throw Undefined("planes of fewer than two dimensions");
    count(dims);  // no product of them overflows
    h = dims[dims.size() - 2], w = dims.back();
    n = count(dims.part(0, -2));
  }
};
inline Dims with_planes(Dims dims, int64_t h, int64_t w) {
  dims[dims.size() - 2] = h, dims.back() = w;
  return dims;
}

}  // namespace twinrun::aten
