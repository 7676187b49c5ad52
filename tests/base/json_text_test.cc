// Tests the limits of JSON texts that nobody vouches for, and integers in them.
#include "program/base/json_text.h"

#include <gtest/gtest.h>

#include <string>

namespace twinrun {
namespace {

std::string error(const std::string& text, const JsonLimits& limits = {}) {
  const auto parsed = parse_json_text(text, limits);
  return parsed ? "accepted" : parsed.error().what;
}

std::string nested(size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); }

TEST(JsonText, WithinTheLimits) {
  const auto parsed = parse_json_text(R"({"a": [1, 2.5, null], "b": {"c": "d"}})");
  ASSERT_TRUE(parsed.ok());
  EXPECT_EQ(parsed->at("b").at("c"), "d");
  EXPECT_EQ(error(nested(64)), "accepted");
}

TEST(JsonText, RefusesWhatIsNoJson) {
  EXPECT_EQ(error(""), "is not JSON at byte 1");
  EXPECT_EQ(error("[1, 2"), "is not JSON at byte 6");
  EXPECT_EQ(error("[1] 2"), "is not JSON at byte 5");
  EXPECT_EQ(error("[\"\xFF\"]"), "is not JSON at byte 3");
}

// Counted before anything is built: a short text may ask for a thousand times its size.
TEST(JsonText, RefusesWhatIsTooMuch) {
  EXPECT_EQ(error(nested(65)), "is nested deeper than 64 levels");
  EXPECT_EQ(error(std::string(3'000'000, '[')), "is nested deeper than 64 levels");
  EXPECT_EQ(error("[1,2,3]", {.values = 3}), "has more than 3 values");
  EXPECT_EQ(error(R"({"a":1,"b":{"c":2}})", {.members = 2}), "has more than 2 keys");
}

// Finding a key of an ordered object takes as long as it has keys.
TEST(JsonText, OrderedTextsHaveFewKeys) {
  const auto object = [](int keys) {
    std::string out = "{";
    for (int i = 0; i < keys; ++i) out += "\"" + std::to_string(i) + "\":0,";
    out.back() = '}';
    return out;
  };
  EXPECT_TRUE(parse_ordered_json_text(object(1000)).ok());
  EXPECT_FALSE(parse_ordered_json_text(object(1001)).ok());
  EXPECT_TRUE(parse_json_text(object(1001)).ok());
}

TEST(JsonText, IntegersAreInRange) {
  using nlohmann::json;
  EXPECT_EQ(json_integer<int32_t>(json(-5)), -5);
  EXPECT_EQ(json_integer<int64_t>(json(INT64_MIN)), INT64_MIN);
  EXPECT_EQ(json_integer<uint8_t>(json(255u)), 255);
  for (const json& bad : {json(1e300), json(2.5), json(int64_t{1} << 31), json(~uint64_t{0}),
                          json(int64_t{-1} << 40), json("1"), json()}) {
    EXPECT_THROW((void)json_integer<int32_t>(bad), json::type_error) << bad;
  }
}

}  // namespace
}  // namespace twinrun
