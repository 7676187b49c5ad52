// Tests of Philox4x32-10 against Random123's published vectors, and of the maps from random words
// to numbers.
#include "program/base/philox.h"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace twinrun {
namespace {

struct KnownAnswer {
  Philox4 counter;
  std::array<uint32_t, 2> key;
  Philox4 words;
};
// Random123 kat_vectors, "philox4x32 10".
constexpr KnownAnswer kPublished[] = {
    {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
    {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
     {0xffffffff, 0xffffffff},
     {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
    {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
     {0xa4093822, 0x299f31d0},
     {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
};

TEST(Philox, PublishedVectors) {
  for (const KnownAnswer& k : kPublished) EXPECT_EQ(philox4x32(k.counter, k.key), k.words);
}

// The third vector again, through draw(): counter (element / 4, sample, step, stream), key = seed.
TEST(Philox, DrawPlacesEveryArgument) {
  const RandomKey key{0x299f31d0a4093822u, 0x03707344u};
  for (uint64_t word = 0; word < 4; ++word) {
    const uint64_t element = uint64_t{0x243f6a88} * 4 + word;
    EXPECT_EQ(draw(key, 0x13198a2eu, 0x85a308d3u, element), kPublished[2].words[word]);
  }
}

TEST(Philox, EveryArgumentMatters) {
  std::set<uint32_t> seen;
  seen.insert(draw({1, 2}, 3, 4, 5));
  seen.insert(draw({1 + (uint64_t{1} << 32), 2}, 3, 4, 5));
  seen.insert(draw({2, 2}, 3, 4, 5));
  seen.insert(draw({1, 3}, 3, 4, 5));
  seen.insert(draw({1, 2}, 4, 4, 5));
  seen.insert(draw({1, 2}, 3, 5, 5));
  seen.insert(draw({1, 2}, 3, 4, 6));
  seen.insert(draw({1, 2}, 3, 4, 9));
  EXPECT_EQ(seen.size(), 8u);
}

TEST(Philox, StreamsDoNotOverlap) {
  EXPECT_EQ(kStreamShuffle - kStreamInit, 1u << 24);
  EXPECT_EQ(kStreamOps - kStreamShuffle, 1u << 24);
  EXPECT_EQ(kStreamData - kStreamOps, 1u << 24);
}

TEST(Uniform, IsTheUpper24BitsAndBelowOne) {
  EXPECT_EQ(uniform(0), 0.0f);
  EXPECT_EQ(uniform(0xFF), 0.0f);
  EXPECT_EQ(uniform(0x100), 0x1p-24f);
  EXPECT_EQ(uniform(0x80000000u), 0.5f);
  EXPECT_EQ(uniform(0xFFFFFFFFu), 1.0f - 0x1p-24f);
  // The map is exact up to the largest values: no two values of the upper 24 bits share a float.
  for (uint32_t top = 0xFFFFF0; top < 0xFFFFFF; ++top) {
    EXPECT_EQ(uniform((top + 1) << 8) - uniform(top << 8), 0x1p-24f);
  }
}

TEST(Uniform, MomentsOfDraws) {
  constexpr int kDraws = 100000;
  double sum = 0, squares = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double u = uniform(draw({42, kStreamData}, 0, 0, i));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  // The estimates have standard deviations 0.2887 / sqrt(n) and 0.2981 / sqrt(n); allow five.
  EXPECT_NEAR(sum / kDraws, 1.0 / 2, 5 * 0.2887 / 316.2);
  EXPECT_NEAR(squares / kDraws, 1.0 / 3, 5 * 0.2981 / 316.2);
}

TEST(Bounded, CoversItsRangeEvenly) {
  for (uint32_t n : {1u, 2u, 7u, 1000u, 0x80000001u, 0xFFFFFFFFu}) {
    EXPECT_EQ(bounded(0, n), 0u);
    EXPECT_EQ(bounded(0xFFFFFFFFu, n), n - 1);
  }
  EXPECT_EQ(bounded(0x7FFFFFFFu, 2), 0u);
  EXPECT_EQ(bounded(0x80000000u, 2), 1u);
  // Over all multiples of 2^16, each of the 7 results occurs 65536 / 7 times, rounded up or down.
  std::array<int, 7> count{};
  for (uint32_t i = 0; i < 65536; ++i) ++count[bounded(i << 16, 7)];
  for (int c : count) EXPECT_NEAR(c, 65536.0 / 7, 1);
}

}  // namespace
}  // namespace twinrun
