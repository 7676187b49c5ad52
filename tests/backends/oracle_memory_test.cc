// The oracle's digits do not depend on where its memory lies.
#include <gtest/gtest.h>

#include <cmath>
#include <list>
#include <tuple>
#include <vector>

#include "backends/oracle/gemm.h"

namespace twinrun::oracle {
namespace {

Sums sums_of(const Product& p) {
  Operand left, right;
  left.parts.emplace_back(static_cast<size_t>(p.m * p.k));
  right.parts.emplace_back(static_cast<size_t>(p.k * p.n));
  for (size_t i = 0; i < left.parts[0].size(); ++i)
    left.parts[0][i] = std::sin(static_cast<double>(i + 1));
  for (size_t i = 0; i < right.parts[0].size(); ++i)
    right.parts[0][i] = std::cos(static_cast<double>(3 * i));
  return evaluate(p, left, right, nullptr, true);
}

TEST(OracleMemory, SumsDoNotDependOnAddresses) {
  std::list<std::vector<double>> others;
  std::list<Sums> kept;
  for (const auto& [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 37},
                                {3, 1, 11},
                                {1, 5, 100},
                                {3, 7, 9},
                                {2, 2, 5},
                                {5, 3, 64}}) {
    for (const bool transposed : {false, true}) {
      Product p;
      p.m = m, p.n = n, p.k = k;
      p.right_transposed = transposed;
      if (transposed) p.left = Product::Left::kTransposed;
      const Sums first = sums_of(p);
      for (size_t round = 0; round < 32; ++round) {
        // What is kept moves what is allocated next.
        others.emplace_back(2 * (round % 7) + 2);
        const Sums& again = kept.emplace_back(sums_of(p));
        EXPECT_EQ(again.head, first.head) << m << " " << n << " " << k << " in round " << round;
        EXPECT_EQ(again.magnitude, first.magnitude);
      }
    }
  }
}

}  // namespace
}  // namespace twinrun::oracle
