// Tests of bfloat16 conversions over every bit pattern, of flushing, and of the ulp distance.
#include "program/base/bits.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace twinrun {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kDenorm = std::numeric_limits<float>::denorm_min();

bool is_nan16(uint32_t b) { return (b & 0x7FFFu) > 0x7F80u; }

TEST(Bf16, EveryPatternSurvivesTheRoundTrip) {
  for (uint32_t b = 0; b <= 0xFFFF; ++b) {
    const auto pattern = static_cast<uint16_t>(b);
    const float wide = bf16_to_f32(pattern);
    const uint16_t expected = is_nan16(b) ? kCanonicalNaN16 : pattern;
    ASSERT_EQ(bf16_round(wide), expected) << std::hex << b;
    ASSERT_EQ(bf16_truncate(wide), expected) << std::hex << b;
    const bool denormal = (b & 0x7F80u) == 0;
    ASSERT_EQ(bf16_round_flush(wide), denormal ? b & 0x8000u : expected) << std::hex << b;
    if (is_nan16(b)) {
      ASSERT_TRUE(std::isnan(wide));
    }
  }
}

// Between the neighbours p and p + 1 of every exponent and fraction, both signs: the midpoint goes
// to the even one, everything else to the nearer one. Above the largest finite bf16 the neighbour
// is infinity.
TEST(Bf16, NearestEvenBetweenAllNeighbours) {
  for (uint32_t sign : {0u, 0x8000u}) {
    for (uint32_t p = 0; p < 0x7F80u; ++p) {
      const uint32_t low = sign | p, high = low + 1, even = (p & 1u) != 0 ? high : low;
      const auto at = [&](uint32_t part) { return from_bits((low << 16) | part); };
      ASSERT_EQ(bf16_round(at(0x0001)), low) << std::hex << low;
      ASSERT_EQ(bf16_round(at(0x7FFF)), low) << std::hex << low;
      ASSERT_EQ(bf16_round(at(0x8000)), even) << std::hex << low;
      ASSERT_EQ(bf16_round(at(0x8001)), high) << std::hex << low;
      ASSERT_EQ(bf16_round(at(0xFFFF)), high) << std::hex << low;
      ASSERT_EQ(bf16_truncate(at(0xFFFF)), low) << std::hex << low;
      ASSERT_EQ(bf16_truncate(at(0x8000)), low) << std::hex << low;
      // The operand is flushed first: a binary32 denormal never rounds up to 2^-126.
      ASSERT_EQ(bf16_round_flush(at(0xFFFF)), p < 0x80 ? sign : high) << std::hex << low;
    }
  }
}

TEST(Bf16, OverflowsToInfinity) {
  EXPECT_EQ(bf16_round(kMax), 0x7F80);
  EXPECT_EQ(bf16_round(-kMax), 0xFF80);
  EXPECT_EQ(bf16_round(0x1.FEp127f), 0x7F7F);
  EXPECT_EQ(bf16_round(0x1.FFp127f), 0x7F80);  // the midpoint ties to "even" infinity
  EXPECT_EQ(bf16_round(std::nextafter(0x1.FFp127f, 0.0f)), 0x7F7F);
  EXPECT_EQ(bf16_round(kInf), 0x7F80);
  EXPECT_EQ(bf16_truncate(kMax), 0x7F7F);
}

TEST(Bf16, EveryNaNBecomesTheCanonicalOne) {
  for (uint32_t u :
       {0x7F800001u, 0x7FFFFFFFu, 0xFF800001u, 0xFFFFFFFFu, 0x7FC00000u, 0x7F80FFFFu}) {
    EXPECT_EQ(bf16_round(from_bits(u)), kCanonicalNaN16) << std::hex << u;
    EXPECT_EQ(bf16_truncate(from_bits(u)), kCanonicalNaN16) << std::hex << u;
    EXPECT_EQ(bf16_round_flush(from_bits(u)), kCanonicalNaN16) << std::hex << u;
    EXPECT_EQ(to_bits(canonical(from_bits(u))), kCanonicalNaN) << std::hex << u;
  }
  EXPECT_EQ(to_bits(canonical(-0.0f)), 0x80000000u);
  EXPECT_EQ(canonical(kInf), kInf);
}

TEST(Flush, TakesDenormalsAlone) {
  EXPECT_EQ(to_bits(flush(kDenorm)), 0u);
  EXPECT_EQ(to_bits(flush(-kDenorm)), 0x80000000u);
  EXPECT_EQ(to_bits(flush(from_bits(0x007FFFFFu))), 0u);
  EXPECT_EQ(to_bits(flush(from_bits(0x80800000u))), 0x80800000u);
  EXPECT_EQ(to_bits(flush(-0.0f)), 0x80000000u);
  EXPECT_EQ(flush(1.5f), 1.5f);
  EXPECT_EQ(flush(-kInf), -kInf);
  EXPECT_TRUE(std::isnan(flush(from_bits(0x7F800001u))));
}

TEST(UlpDistance, CountsFloatsBetween) {
  EXPECT_EQ(ulp_distance(1.0f, std::nextafter(1.0f, 2.0f)), 1);
  EXPECT_EQ(ulp_distance(2.0f, std::nextafter(2.0f, 0.0f)), 1);  // across a binade
  EXPECT_EQ(ulp_distance(1.0f, 2.0f), 1 << 23);
  EXPECT_EQ(ulp_distance(0.0f, -0.0f), 0);
  EXPECT_EQ(ulp_distance(kDenorm, -kDenorm), 2);
  EXPECT_EQ(ulp_distance(-kDenorm, kDenorm), 2);
  EXPECT_EQ(ulp_distance(0.0f, std::numeric_limits<float>::min()), 1 << 23);
  EXPECT_EQ(ulp_distance(kMax, kInf), 1);
  EXPECT_EQ(ulp_distance(-kInf, kInf), 2 * int64_t{0x7F800000});
  EXPECT_EQ(ulp_distance(NAN, NAN), 0);
  EXPECT_EQ(ulp_distance(NAN, 1.0f), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(ulp_distance(1.0f, NAN), std::numeric_limits<int64_t>::max());
}

TEST(UlpDistance, OrderedIsMonotone) {
  float x = -0x1p-126f;
  for (int i = 0; i < 1000; ++i) {
    const float next = std::nextafter(x, kInf);
    ASSERT_EQ(ordered(next) - ordered(x), 1);
    x = next;
  }
}

}  // namespace
}  // namespace twinrun
