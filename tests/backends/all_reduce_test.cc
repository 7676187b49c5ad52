// Tests of the engines' all-reduce: the ring of numerics.md, section 6, on values whose sum depends
// on the order.
#include <gtest/gtest.h>

#include "program/base/bits.h"
#include "tests/backends/small_programs.h"

namespace twinrun::all_reduce_test {
namespace {

using small::all_reduce_program;
using small::f32;
using small::numbers;
using small::Trial;
using Vec = std::vector<double>;

// The sum is ((x_{c+1} + x_{c+2}) + ...) + x_c for chunk c = [cL/N, (c+1)L/N). The values have
// different sums in different orders.
TEST(AllReduce, FollowsTheRing) {
  int64_t elements = 0, ascending_too = 0;
  for (const auto& [cores, length] : std::vector<std::pair<int, int64_t>>{
           {2, 5}, {3, 7}, {4, 8}, {4, 10}, {8, 3}, {8, 1000}, {3, 9001}, {100, 7000}, {300, 70}}) {
    const auto n = static_cast<size_t>(cores);
    std::vector<std::vector<float>> x(n);
    for (size_t r = 0; r < n; ++r) {
      for (int64_t i = 0; i < length; ++i) {
        constexpr float kMagnitudes[] = {1e8f, 1.0f, -1e8f, 3.0f, 1e-4f, -7e7f, 0.3f, 2e4f};
        x[r].push_back(kMagnitudes[(r + static_cast<size_t>(i) % 3) % 8] *
                       (1.0f + static_cast<float>(r) / 8));
      }
    }
    std::vector<float> expected;
    for (int64_t i = 0; i < length; ++i) {
      int64_t c = 0;
      while (i >= (c + 1) * length / cores) ++c;
      float sum = x[static_cast<size_t>((c + 1) % cores)][static_cast<size_t>(i)];
      for (int64_t hop = 2; hop <= cores; ++hop) {
        const volatile float rounded =
            sum + x[static_cast<size_t>((c + hop) % cores)][static_cast<size_t>(i)];
        sum = rounded;
      }
      expected.push_back(sum);
      float ascending = 0;
      for (const auto& replica : x) ascending += replica[static_cast<size_t>(i)];
      ascending_too += ascending == sum;
      ++elements;
    }
    for (const std::string engine : {"cpu", "tpu"}) {
      Trial t(engine, all_reduce_program(cores, length), {.threads = 2});
      for (size_t r = 0; r < n; ++r) t.set("x", f32({length}, x[r]), r);
      t.step();
      for (size_t r = 0; r < n; ++r) {
        EXPECT_TRUE(t.output("sum", r).same_bits(f32({length}, expected)))
            << engine << " " << cores << "x" << length;
      }
    }
  }
  EXPECT_LT(ascending_too, elements * 3 / 4) << "the values do not tell orders apart";
}

// Worked out by hand: four replicas, chunks of one element.
TEST(AllReduce, FourReplicasByHand) {
  Trial t("cpu", all_reduce_program(4, 4));
  const float values[] = {1e8f, 1.0f, -1e8f, 1.0f};
  for (size_t r = 0; r < 4; ++r) t.set("x", f32({4}, std::vector<float>(4, values[r])), r);
  t.step();
  // chunk 0: ((1 - 1e8) + 1) + 1e8 = 0;  1: ((-1e8 + 1) + 1e8) + 1 = 1;
  // chunk 2: ((1 + 1e8) + 1) - 1e8 = 0;  3: ((1e8 + 1) - 1e8) + 1 = 1.
  EXPECT_EQ(numbers(t.output("sum")), (Vec{0, 1, 0, 1}));
}

TEST(AllReduce, OfOneReplicaMovesBits) {
  Trial t("cpu", all_reduce_program(1, 2));
  t.set("x", f32({2}, {-0.0f, 1e-45f}));
  t.step();
  EXPECT_EQ(to_bits(t.output("sum").as<float>()[0]), 0x80000000u) << "no initial zero is added";
  EXPECT_EQ(to_bits(t.output("sum").as<float>()[1]), 1u);
}

}  // namespace
}  // namespace twinrun::all_reduce_test
