// Folds the errors of a tensor, in units of their bounds, into a grid of levels.
#include "harness/tensors/picture.h"

#include <algorithm>
#include <cmath>

#include "program/base/element.h"

namespace twinrun {
namespace {

constexpr int64_t kMax = 64;  // cells per side

// 0: within the bound; 1 to 9: the power of ten by which the error exceeds it; 10: NaN, Inf, or a
// difference where the bits had to be equal.
int level_of(double ratio) {
  if (ratio <= 1) return 0;
  return std::isfinite(ratio) ? std::clamp(static_cast<int>(std::ceil(std::log10(ratio))), 1, 9)
                              : 10;
}

// How many trailing dimensions form the columns of the picture: the number that makes rows and
// columns as nearly equal in number as possible.
int64_t columns_of(const std::vector<int64_t>& dims) {
  int64_t best = 1;
  double least = INFINITY;
  for (size_t across = 1; across <= dims.size(); ++across) {
    double balance = 0;
    for (size_t d = 0; d < dims.size(); ++d)
      balance += std::log(static_cast<double>(dims[d])) * (d + across < dims.size() ? -1 : 1);
    if (std::fabs(balance) >= least) continue;
    least = std::fabs(balance);
    best = static_cast<int64_t>(across);
  }
  return best;
}

}  // namespace

TensorPicture picture_of(const std::vector<int64_t>& dims, const OracleResult& oracle,
                         const Tensor& subject) {
  const auto n = static_cast<int64_t>(oracle.value.size());
  TensorPicture picture{dims, dims.empty() ? 0 : columns_of(dims), {}};
  int64_t columns = 1;
  for (size_t d = dims.size() - static_cast<size_t>(picture.across); d < dims.size(); ++d)
    columns *= dims[d];
  if (n == 0 || columns == 0) return picture;
  const int64_t rows = n / columns;
  const int64_t high = std::min(rows, kMax), wide = std::min(columns, kMax);
  std::vector<int> worst(static_cast<size_t>(high * wide), 0);
  for (int64_t i = 0; i < n; ++i) {
    const auto k = static_cast<size_t>(i);
    int& cell =
        worst[static_cast<size_t>(i / columns * high / rows * wide + i % columns * wide / columns)];
    cell = std::max(
        cell, level_of(oracle::ratio(number_at(subject, i), {oracle.value[k], oracle.radius[k]})));
  }
  for (int64_t r = 0; r < high; ++r) {
    std::string line;
    for (int64_t c = 0; c < wide; ++c)
      line += ".123456789!"[worst[static_cast<size_t>(r * wide + c)]];
    picture.cells.push_back(std::move(line));
  }
  return picture;
}

}  // namespace twinrun
