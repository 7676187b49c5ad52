// Tests the checksum of JSON documents: its place in the text, and that no change of a document is
// taken for the document.
#include "program/base/json_checksum.h"

#include <gtest/gtest.h>

namespace twinrun {
namespace {

const std::string kPretty = "{\n  \"schema\": 1,\n  \"list\": [\n    1,\n    2\n  ]\n}\n";
const std::string kLine = R"({"a":1,"b":{"checksum":"of something else"}})";

// Computed with zlib.crc32 of Python.
TEST(JsonChecksum, ItIsTheLastMemberInTheLayoutOfTheText) {
  EXPECT_EQ(with_checksum(kPretty),
            "{\n  \"schema\": 1,\n  \"list\": [\n    1,\n    2\n  ],\n"
            "  \"checksum\": \"crc32:598933e2\"\n}\n");
  EXPECT_EQ(with_checksum(R"({"a":1})"), R"({"a":1,"checksum":"crc32:4a77cdcd"})");
  EXPECT_EQ(with_checksum("{}"), R"({"checksum":"crc32:15d54739"})");
  EXPECT_EQ(with_checksum("[1]\n"), "[1]\n");
}

TEST(JsonChecksum, ItIsFoundAgain) {
  for (const std::string& text : {kPretty, kLine, std::string("{}"), std::string("{ }\n")}) {
    EXPECT_EQ(*check_checksum(text, "f"), false) << text;
    const auto found = check_checksum(with_checksum(text), "f");
    ASSERT_TRUE(found.ok()) << text;
    EXPECT_TRUE(*found) << text;
  }
}

// A string that is called like the member is no checksum.
TEST(JsonChecksum, OtherTextOfThatNameIsNone) {
  for (const char* text : {R"({"a":"checksum"})", R"({"checksum":5})", R"({"checksum":"x","b":1})",
                           R"({"a":{"checksum":""}})", R"("checksum":")", R"({"checksum")"})
    EXPECT_EQ(*check_checksum(text, "f"), false) << text;
}

TEST(JsonChecksum, EveryChangedBitBeforeItIsFound) {
  for (const std::string& text : {kPretty, kLine}) {
    const std::string whole = with_checksum(text);
    const size_t key = whole.rfind("\"checksum\"");
    for (size_t at = 0; at < whole.size(); ++at) {
      for (int bit = 0; bit < 8; ++bit) {
        std::string changed = whole;
        changed[at] = static_cast<char>(changed[at] ^ (1 << bit));
        const auto found = check_checksum(changed, "f");
        const bool refused = !found.ok() || !*found;
        if (at < key) {
          EXPECT_FALSE(found.ok()) << changed;
        } else if (changed.find_first_not_of(" \t\r\n", at) == at) {
          EXPECT_TRUE(refused) << changed;  // a blank for a blank is the same document
        }
      }
    }
  }
}

TEST(JsonChecksum, AMemberAddedAfterItIsAChange) {
  const std::string whole = with_checksum(R"({"a":1})");
  EXPECT_FALSE(check_checksum(whole.substr(0, whole.size() - 1) + R"(,"a":2})", "f").ok());
  EXPECT_FALSE(check_checksum(R"({"checksum":"crc32:00000000"})", "f").ok());
  EXPECT_FALSE(check_checksum(R"({"checksum":"md5:00000000"})", "f").ok());
  const auto changed = check_checksum(R"({"checksum":"crc32:00000000"})", "report.json");
  EXPECT_EQ(changed.error().where, "report.json");
  EXPECT_NE(changed.error().what.find("changed after it was written"), std::string::npos);
}

}  // namespace
}  // namespace twinrun
