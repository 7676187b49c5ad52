// Tests of the helpers for names in error messages (edit distance, nearest name, join), and of
// errors as values (Result, Error).
#include "program/base/names.h"

#include <gtest/gtest.h>

#include <memory>

#include "program/base/result.h"

namespace twinrun {
namespace {

TEST(Names, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("label", "lable"), 1) << "a swap is one edit";
  EXPECT_EQ(edit_distance("ca", "abc"), 3) << "optimal string alignment: no edit inside a swap";
  EXPECT_EQ(edit_distance("image", "images"), 1);
  EXPECT_EQ(edit_distance("same", "same"), 0);
  // Names of a foreign file: a table of all bytes against all others would take gigabytes.
  const std::string x(200'000, 'x'), y(200'000, 'y');
  EXPECT_EQ(edit_distance(x, y), 200'000);
  EXPECT_EQ(edit_distance(x + "a" + y, x + "b" + y), 1);
}

TEST(Names, Nearest) {
  EXPECT_EQ(nearest("lable", {"image", "label", "step"}), "label");
  EXPECT_EQ(nearest("x", {"a", "b"}), "a") << "the first of equals";
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(Names, Join) {
  EXPECT_EQ(join({}, ", "), "");
  EXPECT_EQ(join({"a"}, ", "), "a");
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(join({"", "b", ""}, ","), ",b,") << "empty parts keep their place";
}

Result<int> half(int n) {
  if (n % 2 != 0) return Error{"is odd", "half", "use an even number"};
  return n / 2;
}
Result<int> quarter(int n) {
  TWINRUN_ASSIGN(const int h, half(n));
  return half(h);
}
Status check(int n) {
  TWINRUN_RETURN_IF_ERROR(quarter(n));
  return Ok{};
}

TEST(Result, CarriesAValueOrAnError) {
  const Result<int> good = half(8);
  ASSERT_TRUE(good);
  EXPECT_TRUE(good.ok());
  EXPECT_EQ(*good, 4);
  const Result<int> bad = half(7);
  EXPECT_FALSE(bad);
  EXPECT_EQ(bad.error().what, "is odd");
}

TEST(Result, MacrosHandTheErrorOn) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_EQ(quarter(6).error().what, "is odd");
  EXPECT_TRUE(check(4));
  EXPECT_FALSE(check(2));
}

TEST(Result, MovesOut) {
  Result<std::unique_ptr<int>> r = std::make_unique<int>(5);
  EXPECT_EQ(**r, 5);
  const std::unique_ptr<int> taken = *std::move(r);
  EXPECT_EQ(*taken, 5);
}

TEST(Result, WithKindKeepsAKindThatIsThere) {
  using Kind = Error::Kind;
  EXPECT_EQ(half(7).error().kind, Kind::kInput);
  EXPECT_EQ(half(7).with_kind(Kind::kRun).error().kind, Kind::kRun);
  EXPECT_EQ(half(7).with_kind(Kind::kRefusal).with_kind(Kind::kRun).error().kind, Kind::kRefusal);
  EXPECT_EQ(*half(8).with_kind(Kind::kRun), 4);
}

TEST(Error, Message) {
  EXPECT_EQ((Error{"what", "where", "fix"}.message()), "where: what\n  fix: fix");
  EXPECT_EQ((Error{"what", "", ""}.message()), "what");
  EXPECT_EQ((Error{"what", "where", ""}.message()), "where: what");
}

}  // namespace
}  // namespace twinrun
