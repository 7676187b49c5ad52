// Reads protobuf's wire format.
#include "program/base/protobuf_wire.h"

#include <fmt/format.h>

#include <cstring>

namespace twinrun::wire {
namespace {

constexpr int kMaxVarintBytes = 10;  // 64 bits, seven a byte

std::string_view type_name(Type type) {
  switch (type) {
    case Type::kVarint:
      return "a varint";
    case Type::kFixed64:
      return "eight fixed bytes";
    case Type::kBytes:
      return "a string or message";
    case Type::kFixed32:
      return "four fixed bytes";
  }
  return "";
}

}  // namespace

Error Message::fail(size_t at, std::string what) const {
  return {std::move(what), fmt::format("{}: byte {}", file_, at), ""};
}

Error Message::wrong_type(const Field& field, const char* wanted) const {
  return fail(field.at, fmt::format("field {} is {}; allowed is {}", field.number,
                                    type_name(field.type), wanted));
}

Result<uint64_t> Message::varint() {
  uint64_t value = 0;
  const size_t from = at_;
  for (int i = 0; i < kMaxVarintBytes; ++i) {
    if (at_ == bytes_.size())
      return fail(start_ + from, "the message ends within a number: it is cut short or damaged");
    const auto byte = static_cast<uint8_t>(bytes_[at_++]);
    // The tenth byte has the last bit only; protobuf drops what is above it.
    value |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) return value;
  }
  return fail(start_ + from, fmt::format("a number of more than {} bytes", kMaxVarintBytes));
}

Result<bool> Message::next(Field& field) {
  if (at_ == bytes_.size()) return false;
  field = {};
  field.at = start_ + at_;
  TWINRUN_ASSIGN(const uint64_t tag, varint());
  const uint64_t number = tag >> 3, type = tag & 7;
  constexpr uint64_t kMaxNumber = (uint64_t{1} << 29) - 1;
  if (number == 0 || number > kMaxNumber)
    return fail(field.at, fmt::format("field number {}; allowed are 1 to {}", number, kMaxNumber));
  field.number = static_cast<uint32_t>(number);
  field.type = static_cast<Type>(type);
  size_t size = 0;
  switch (field.type) {
    case Type::kVarint: {
      TWINRUN_ASSIGN(field.value, varint());
      return true;
    }
    case Type::kFixed64:
      size = 8;
      break;
    case Type::kFixed32:
      size = 4;
      break;
    case Type::kBytes: {
      TWINRUN_ASSIGN(const uint64_t length, varint());
      if (length > bytes_.size() - at_)
        return fail(field.at, fmt::format("field {} has {} bytes, and the message only {} more: it "
                                          "is cut short or damaged",
                                          number, length, bytes_.size() - at_));
      field.bytes = bytes_.substr(at_, static_cast<size_t>(length));
      at_ += static_cast<size_t>(length);
      return true;
    }
    default:
      return fail(field.at, fmt::format("field {} has wire type {}; allowed are 0, 1, 2 and 5",
                                        number, type));
  }
  if (size > bytes_.size() - at_)
    return fail(field.at, fmt::format("field {} ends after the message", number));
  std::memcpy(&field.value, bytes_.data() + at_, size);  // both little-endian
  at_ += size;
  return true;
}

Result<std::string_view> Message::bytes(const Field& field) const {
  if (field.type != Type::kBytes) return wrong_type(field, "a string or message");
  return field.bytes;
}

Result<uint64_t> Message::number(const Field& field) const {
  if (field.type == Type::kBytes) return wrong_type(field, "a number");
  return field.value;
}

Result<Message> Message::message(const Field& field) const {
  TWINRUN_ASSIGN(const std::string_view inner, bytes(field));
  if (depth_ == kMaxDepth)
    return fail(field.at, fmt::format("messages within messages, more than {} deep", kMaxDepth));
  // The bytes of a field are its end, so where they begin follows from this message's bytes.
  const auto from = static_cast<size_t>(inner.data() - bytes_.data());
  return Message(inner, file_, start_ + from, depth_ + 1);
}

}  // namespace twinrun::wire
