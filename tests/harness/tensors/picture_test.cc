// Tests the picture of a wrong tensor: which cells it has, how large tensors are folded, how far
// each cell is outside.
#include "harness/tensors/picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace twinrun {
namespace {

Tensor tensor(const Dims& dims, const std::vector<float>& v) {
  Tensor t = Tensor::empty({DType::kF32, dims});
  std::copy(v.begin(), v.end(), t.as<float>().begin());
  return t;
}

TensorPicture picture(const Dims& dims, const std::vector<float>& got,
                      const std::vector<double>& expected, double radius) {
  return picture_of(dims, {expected, std::vector<double>(expected.size(), radius)},
                    tensor(dims, got));
}

TEST(Picture, CellsSayHowManyPowersOfTenOutside) {
  const TensorPicture p = picture({2, 4}, {1, 2, 3, 4, 5, 6, NAN, INFINITY},
                                  {1, 2.5, 3 + 9.0, 4 + 100.0, 5 + 1e3, 6 + 1e12, NAN, 7}, 1);
  EXPECT_EQ(p.dims, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ(p.across, 1);
  EXPECT_EQ(p.cells, (std::vector<std::string>{"..12", "39.!"}));
}

TEST(Picture, BitsThatHadToBeEqualAreNoMatterOfDegree) {
  EXPECT_EQ(picture({3}, {1, 2, 3}, {1, 2, 4}, 0).cells, (std::vector<std::string>{"..!"}));
  EXPECT_EQ(picture({3}, {1, 2, 3}, {1, 2, 4}, INFINITY).cells, (std::vector<std::string>{"..."}));
}

TEST(Picture, LargeTensorsFoldAndKeepTheirWorstElement) {
  const Dims dims = {3, 3, 32, 160};  // 288 by 160: the most nearly square split
  const size_t n = 3 * 3 * 32 * 160;
  std::vector<float> got(n, 0);
  got[0] = 5;
  got[n - 1] = 500;
  const TensorPicture p = picture(dims, got, std::vector<double>(n, 0), 1);
  EXPECT_EQ(p.across, 1);
  ASSERT_EQ(p.cells.size(), 64U);
  int marked = 0;
  for (const std::string& row : p.cells) {
    EXPECT_EQ(row.size(), 64U);
    marked += static_cast<int>(std::ranges::count_if(row, [](char c) { return c != '.'; }));
  }
  EXPECT_EQ(marked, 2);
  EXPECT_EQ(p.cells.front().front(), '1');
  EXPECT_EQ(p.cells.back().back(), '3');
}

TEST(Picture, ScalarsAndEmptyTensors) {
  EXPECT_EQ(picture({}, {2}, {1}, 0.5).cells, (std::vector<std::string>{"1"}));
  EXPECT_TRUE(picture({0, 3}, {}, {}, 1).cells.empty());
}

}  // namespace
}  // namespace twinrun
