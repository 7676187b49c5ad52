// Compares two tensors of one type element by element: how many differ in their bits, which is the
// first, and by how much. `twinrun diff` and `twinrun bisect` report these numbers.
//
//   const ElementDiff d = diff_elements(a, b, 0, a.elements());
//   d.different;  d.max_ulps;  d.relative();
//   if (d.first >= 0) index_text(a.dims(), d.first);
#pragma once

#include <cstdint>

#include "program/base/tensor.h"

namespace twinrun {

struct ElementDiff {
  int64_t different = 0;
  int64_t first = -1;  // flat index of the first element that differs; -1: none
  int64_t nans = 0;    // differing elements that are NaN on at least one side
  // The members below leave NaN out.
  int64_t max_ulps = 0;  // binary32 only
  double max_abs = 0;
  double gap_squares = 0, b_squares = 0;  // sums of (a - b)^2 and of b^2

  // |a - b| / |b|, 2-norms; |a - b| where b is 0. RelativeDistance (distance.h) differs: there, a
  // NaN makes the distance NaN.
  double relative() const;
  void add(const ElementDiff& next);  // of a range that follows
};

// Compares the elements [begin, end).
ElementDiff diff_elements(const Tensor& a, const Tensor& b, int64_t begin, int64_t end);

}  // namespace twinrun
