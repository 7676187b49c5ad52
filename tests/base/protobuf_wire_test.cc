// Tests the reader of protobuf's wire format: every type of field, and what is damaged.
#include "program/base/protobuf_wire.h"

#include <gtest/gtest.h>

namespace twinrun::wire {
namespace {

using namespace std::string_view_literals;

// The fields of a message, "1:150 2:testing", or its error.
std::string fields(std::string_view bytes) {
  Message message(bytes, "x.pb");
  std::string out;
  Field f;
  while (true) {
    const auto more = message.next(f);
    if (!more) return more.error().where + ": " + more.error().what;
    if (!*more) return out;
    out += (out.empty() ? "" : " ") + std::to_string(f.number) + ":" +
           (f.type == Type::kBytes ? std::string(f.bytes) : std::to_string(f.value));
  }
}

// The examples of protobuf's documentation of the format.
TEST(ProtobufWire, ReadsEveryType) {
  EXPECT_EQ(fields(""), "");
  EXPECT_EQ(fields("\x08\x96\x01"sv), "1:150");
  EXPECT_EQ(fields("\x12\x07testing"sv), "2:testing");
  EXPECT_EQ(fields("\x09\x01\x00\x00\x00\x00\x00\x00\x80"sv), "1:9223372036854775809");
  EXPECT_EQ(fields("\x0d\x02\x00\x00\x00"sv), "1:2");
  EXPECT_EQ(fields("\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"sv), "1:18446744073709551614");
  EXPECT_EQ(fields("\x08\x01\x12\x00\x08\x02"sv), "1:1 2: 1:2");
}

TEST(ProtobufWire, DamageIsAnErrorThatNamesTheByte) {
  const std::pair<std::string_view, const char*> wrong[] = {
      {"\x08"sv, "x.pb: byte 1: the message ends within a number: it is cut short or damaged"},
      {"\x08\x01\x88"sv,
       "x.pb: byte 2: the message ends within a number: it is cut short or damaged"},
      {"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"sv,
       "x.pb: byte 1: a number of more than 10 bytes"},
      {"\x12\x08testing"sv,
       "x.pb: byte 0: field 2 has 8 bytes, and the message only 7 more: it is cut short or "
       "damaged"},
      {"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01x"sv,
       "x.pb: byte 0: field 2 has 18446744073709551615 bytes, and the message only 1 more: it is "
       "cut short or damaged"},
      {"\x09\x01"sv, "x.pb: byte 0: field 1 ends after the message"},
      {"\x00\x01"sv, "x.pb: byte 0: field number 0; allowed are 1 to 536870911"},
      {"\x0b"sv, "x.pb: byte 0: field 1 has wire type 3; allowed are 0, 1, 2 and 5"},
  };
  for (const auto& [bytes, says] : wrong) EXPECT_EQ(fields(bytes), says);
}

TEST(ProtobufWire, AFieldOfAnotherTypeIsAnError) {
  Message message("\x08\x01\x12\x01x"sv, "x.pb");
  Field number, text;
  ASSERT_TRUE(*message.next(number));
  ASSERT_TRUE(*message.next(text));
  EXPECT_EQ(*message.number(number), 1u);
  EXPECT_EQ(*message.bytes(text), "x");
  const auto not_text = message.bytes(number);
  ASSERT_FALSE(not_text);
  EXPECT_EQ(not_text.error().message(),
            "x.pb: byte 0: field 1 is a varint; allowed is a string or message");
  EXPECT_FALSE(message.message(number));
  const auto not_number = message.number(text);
  ASSERT_FALSE(not_number);
  EXPECT_EQ(not_number.error().message(),
            "x.pb: byte 2: field 2 is a string or message; allowed is a number");
}

// Of a message within messages, places are still those of the file.
TEST(ProtobufWire, InnerMessages) {
  Message outer("\x08\x01\x12\x04\x1a\x02\x08\xff"sv, "x.pb");
  Field f;
  ASSERT_TRUE(*outer.next(f));
  ASSERT_TRUE(*outer.next(f));
  auto middle = outer.message(f);
  ASSERT_TRUE(middle);
  ASSERT_TRUE(*middle->next(f));
  EXPECT_EQ(f.number, 3u);
  EXPECT_EQ(f.at, 4u);
  auto inner = middle->message(f);
  ASSERT_TRUE(inner);
  const auto cut = inner->next(f);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().where, "x.pb: byte 7");
}

TEST(ProtobufWire, PackedAndSingleNumbers) {
  Message message("\x32\x03\x03\x96\x01\x30\x05\x32\x01\x80"sv, "x.pb");
  std::vector<uint64_t> numbers;
  const auto add = [&](uint64_t n) { numbers.push_back(n); };
  Field f;
  ASSERT_TRUE(*message.next(f));
  EXPECT_TRUE(message.numbers(f, add));
  ASSERT_TRUE(*message.next(f));
  EXPECT_TRUE(message.numbers(f, add));
  EXPECT_EQ(numbers, (std::vector<uint64_t>{3, 150, 5}));
  ASSERT_TRUE(*message.next(f));
  EXPECT_FALSE(message.numbers(f, add));
}

TEST(ProtobufWire, DepthIsLimited) {
  std::string bytes;
  for (int i = 0; i < kMaxDepth + 20; ++i) {
    // Lengths of up to 127 bytes have one byte; the outermost messages need two.
    const std::string length = bytes.size() < 128
                                   ? std::string(1, static_cast<char>(bytes.size()))
                                   : std::string{static_cast<char>(bytes.size() | 0x80),
                                                 static_cast<char>(bytes.size() >> 7)};
    bytes.insert(0, std::string("\x0a").append(length));
  }
  Message message(bytes, "x.pb");
  int depth = 0;
  while (true) {
    Field f;
    const auto more = message.next(f);
    ASSERT_TRUE(more && *more);
    auto inner = message.message(f);
    if (!inner) {
      EXPECT_EQ(inner.error().what, "messages within messages, more than 100 deep");
      break;
    }
    message = *inner;
    ++depth;
  }
  EXPECT_EQ(depth, kMaxDepth);
}

}  // namespace
}  // namespace twinrun::wire
