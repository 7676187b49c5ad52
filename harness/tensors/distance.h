// How far tensors are apart, together: |a - b| / |b| over all elements that were added.
//
//   RelativeDistance d;
//   for (...) d.add(mine, theirs);
//   d.value();
#pragma once

#include <vector>

#include "program/base/tensor.h"

namespace twinrun {

class RelativeDistance {
 public:
  void add(const Tensor& a, const Tensor& b);
  void add(const std::vector<double>& a, const std::vector<double>& b);
  double value() const;  // 0 where b is 0

 private:
  double gap_ = 0, size_ = 0;
};

}  // namespace twinrun
