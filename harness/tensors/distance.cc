// Sums the squares that a relative distance needs, in binary64.
#include "harness/tensors/distance.h"

#include <cmath>

#include "harness/experiment/experiment.h"

namespace twinrun {

double squared_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return sum;
}

void RelativeDistance::add(const Tensor& a, const Tensor& b) { add(as_doubles(a), as_doubles(b)); }

void RelativeDistance::add(const std::vector<double>& x, const std::vector<double>& y) {
  for (size_t k = 0; k < x.size(); ++k) {
    gap_ += (x[k] - y[k]) * (x[k] - y[k]);
    size_ += y[k] * y[k];
  }
}

double RelativeDistance::value() const { return size_ > 0 ? std::sqrt(gap_ / size_) : 0; }

}  // namespace twinrun
