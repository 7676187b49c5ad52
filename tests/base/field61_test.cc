// Tests of the prime field Field61 against integers, fractions and the laws of a field.
#include "program/base/field61.h"

#include <gtest/gtest.h>

#include <random>

namespace twinrun {
namespace {

constexpr uint64_t kPrime = Field61::kPrime;

std::vector<Field61> some_elements() {
  std::vector<Field61> out = {{0}, {1}, {2}, {kPrime - 1}, {kPrime - 2}, {kPrime / 2}, {1u << 31}};
  std::mt19937_64 random(1);
  for (int i = 0; i < 40; ++i) out.push_back({random() % kPrime});
  return out;
}

TEST(Field61, SumsAndProductsAreThoseOfIntegersModuloThePrime) {
  __extension__ using Wide = unsigned __int128;
  for (const Field61 a : some_elements()) {
    EXPECT_EQ(a - a, Field61{0});
    EXPECT_EQ(a + -a, Field61{0});
    for (const Field61 b : some_elements()) {
      EXPECT_EQ((a + b).word, (a.word + b.word) % kPrime);
      EXPECT_EQ((a - b) + b, a);
      const Wide product = static_cast<Wide>(a.word) * b.word;
      EXPECT_EQ((a * b).word, static_cast<uint64_t>(product % kPrime));
      EXPECT_EQ(Field61::reduced(product), a * b);
      EXPECT_EQ(Field61::reduced(product * 32 + kPrime).word,
                static_cast<uint64_t>((product * 32 + kPrime) % kPrime));
      if (b.word != 0) {
        EXPECT_EQ(a / b * b, a);
      }
    }
  }
  EXPECT_EQ(Field61{0}.inverse(), Field61{0});
}

TEST(Field61, ManyInversesAtOnceAreEachOnesOwn) {
  std::vector<Field61> all = some_elements();
  const std::vector<Field61> before = all;
  invert_all(all);
  for (size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], before[i].inverse()) << i;
}

TEST(Field61, IntegersAndFractionsAreTheirOwn) {
  for (const int64_t n : {0, 1, -1, 7, -1000000, 1 << 19}) {
    EXPECT_EQ(Field61::of(n).small_integer(), n);
    for (const int64_t d : {1, 2, 3, 7, 1024, 999983}) {
      const auto found = (Field61::of(n) / Field61::of(d)).fraction();
      ASSERT_TRUE(found) << n << "/" << d;
      EXPECT_EQ(found->first * d, n * found->second);
      EXPECT_GT(found->second, 0);
    }
  }
  EXPECT_EQ(Field61::of(INT64_MIN), Field61::of(INT64_MIN + 1) - Field61{1});
  for (const Field61 x : some_elements()) {
    if (x.word > uint64_t{1} << 50 && x.word < kPrime - (uint64_t{1} << 50) &&
        x.word != kPrime / 2) {
      EXPECT_FALSE(x.small_integer() || x.fraction()) << x.word;
    }
  }
}

TEST(Field61, ConstantsAreTheFractionsThatWereMeant) {
  const auto ratio = [](int64_t n, int64_t d) { return Field61::of(n) / Field61::of(d); };
  EXPECT_EQ(Field61::constant(0), Field61{0});
  EXPECT_EQ(Field61::constant(-3), Field61::of(-3));
  EXPECT_EQ(Field61::constant(0.375), ratio(3, 8));
  EXPECT_EQ(Field61::constant(1.0 / 3), ratio(1, 3));
  EXPECT_EQ(Field61::constant(-0.999), ratio(-999, 1000));
  EXPECT_EQ(Field61::constant(1 - 0.9), ratio(1, 10));  // 0.09999999999999998
  EXPECT_EQ(Field61::constant(1.0 / 7) * Field61::of(7), Field61{1});
  EXPECT_EQ(Field61::constant(-1e9), Field61::of(-1000000000));
  // A constant that is no fraction of small integers stands for its exact binary64 value.
  EXPECT_EQ(Field61::constant(0x1.921fb54442d18p+1) * Field61{uint64_t{1} << 51},
            Field61::of(0x1921fb54442d18));
  EXPECT_EQ(Field61::constant(0x1p-100) * Field61::constant(0x1p100), Field61{1});
  EXPECT_NE(Field61::constant(INFINITY), Field61::constant(-INFINITY));
}

}  // namespace
}  // namespace twinrun
