// Tests the reading of wire format, field by field.
#include "harness/xplane/wire.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <vector>

#include "tests/support/wire_writer.h"

namespace twinrun::wire {
namespace {

TEST(Wire, ReadsWhatIsWritten) {
  const Written inner = Written().number(1, 7);
  const std::string bytes = Written()
                                .number(1, 0)
                                .number(2, std::numeric_limits<uint64_t>::max())
                                .real(3, -0.5)
                                .text(4, "dense1")
                                .message(500, inner)
                                .bytes;
  Fields fields(bytes);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.number(), 1U);
  EXPECT_EQ(fields.value(), 0U);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.value(), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(fields.integer(), -1);
  EXPECT_EQ(fields.bytes(), "");
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.real(), -0.5);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.bytes(), "dense1");
  EXPECT_EQ(fields.value(), 0U);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.number(), 500U);
  EXPECT_EQ(fields.bytes(), inner.bytes);
  EXPECT_FALSE(fields.next());
  EXPECT_FALSE(fields.broken());
}

TEST(Wire, SkipsFixed32) {
  Fields fields(std::string_view("\x0D\x01\x02\x03\x04\x10\x05", 7));  // field 1, then field 2
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.value(), 0x04030201U);
  ASSERT_TRUE(fields.next());
  EXPECT_EQ(fields.value(), 5U);
}

TEST(Wire, EveryCutIsBrokenOrShorter) {
  const std::string bytes = Written().number(2, 300).real(3, 1).text(4, "abc").bytes;
  const std::set<size_t> whole = {0, 3, 12, 17};  // where a field ends
  for (size_t at = 0; at <= bytes.size(); ++at) {
    Fields fields(std::string_view(bytes).substr(0, at));
    while (fields.next()) {
    }
    EXPECT_EQ(fields.broken(), !whole.contains(at)) << at;
  }
}

TEST(Wire, RefusesWhatIsNoField) {
  for (const std::string_view bytes :
       {std::string_view("\x00\x01", 2),  // field 0
        std::string_view("\x0B", 1),      // a group
        std::string_view("\x0F", 1),      // no such type
        std::string_view("\x12\x05"
                         "ab",
                         4),  // longer than what is left
        std::string_view("\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01", 12)}) {
    Fields fields(bytes);
    EXPECT_FALSE(fields.next());
    EXPECT_TRUE(fields.broken());
    EXPECT_FALSE(fields.next());
  }
}

TEST(Wire, PackedNumbers) {
  std::vector<int64_t> read;
  for (Packed packed(std::string_view("\x01\xAC\x02\xFF", 4)); packed.next();)
    read.push_back(packed.integer());
  EXPECT_EQ(read, (std::vector<int64_t>{1, 300}));  // the last one is cut short
}

}  // namespace
}  // namespace twinrun::wire
