// Mean and standard deviation of a few numbers, such as the values of seeds or their differences;
// for effect.cc and trajectory.cc.
//
//   deviation_of({1, 2, 3});      // 1
#pragma once

#include <cmath>
#include <numeric>
#include <vector>

namespace twinrun {

inline double mean_of(const std::vector<double>& v) {
  return std::accumulate(v.begin(), v.end(), 0.0) / static_cast<double>(v.size());
}

// The standard deviation of a sample (divides by n - 1). 0 for one number.
inline double deviation_of(const std::vector<double>& v) {
  if (v.size() < 2) return 0;
  const double m = mean_of(v);
  double sum = 0;
  for (double x : v) sum += (x - m) * (x - m);
  return std::sqrt(sum / static_cast<double>(v.size() - 1));
}

}  // namespace twinrun
