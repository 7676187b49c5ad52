// Relative distance between tensors: |a - b| / |b|, 2-norms over all elements that were added. The
// instruments of harness/ use it to say how far results diverge.
//
//   RelativeDistance d;
//   for (...) d.add(mine, theirs);
//   d.value();
#pragma once

#include <vector>

#include "program/base/tensor.h"

namespace twinrun {

// |a - b|^2, summed from the first element on.
double squared_distance(const std::vector<double>& a, const std::vector<double>& b);

class RelativeDistance {
 public:
  // `a` and `b` have the same number of elements.
  void add(const Tensor& a, const Tensor& b);
  void add(const std::vector<double>& a, const std::vector<double>& b);
  double value() const;  // 0 where b is 0

 private:
  double gap_ = 0, size_ = 0;
};

}  // namespace twinrun
