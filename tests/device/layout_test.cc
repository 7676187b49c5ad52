// Tests of tensor layouts in HBM and of the facts about TPU generations.
#include "device/layout.h"

#include <gtest/gtest.h>

#include "device/machine.h"

namespace twinrun::tpu {
namespace {

// From the log of a TPU v2: github.com/sokrypton/ColabFold/issues/62.
TEST(Layout, LargestAllocationOfALog) {
  const TensorType type{DType::kF32, {512, 245, 256}};
  const Layout layout = default_layout(type);
  EXPECT_EQ(to_string(type, layout), "f32[512,245,256]{2,1,0:T(8,128)}");
  EXPECT_EQ(padded_bytes(type, layout), 124 << 20);
  EXPECT_EQ(type.bytes(), 512u * 245 * 256 * 4);
}

TEST(Layout, SmallestPutsLargeDimensionsOnTiles) {
  const TensorType type{DType::kF32, {1024, 7, 7, 3}};
  const Layout smallest = smallest_layout(type);
  EXPECT_EQ(smallest.minor_to_major[0], 0);  // 1024 on the lanes
  EXPECT_LT(padded_bytes(type, smallest), padded_bytes(type, default_layout(type)));
}

TEST(Machine, GenerationsAsLogsTell) {
  const auto v2 = find_generation("v2");
  ASSERT_TRUE(v2);
  EXPECT_EQ(v2->hbm_usable(), (8LL << 30) - (530LL << 20));
  EXPECT_NEAR(v2->peak_flops(), 22.9e12, 0.1e12);
  const auto wrong = find_generation("v22");
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().fix, "did you mean 'v2'?");
}

}  // namespace
}  // namespace twinrun::tpu
