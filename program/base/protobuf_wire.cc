// Reads protobuf's wire format.
#include "program/base/protobuf_wire.h"

#include <bit>
#include <cstring>
#include <string>

namespace twinrun::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "fixed fields are little-endian");

std::string type_name(Type type) {
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
  return {std::move(what), std::string(file_) + ": byte " + std::to_string(at), ""};
}

Error Message::wrong_type(const Field& field, const char* wanted) const {
  return fail(field.at, "field " + std::to_string(field.number) + " is " + type_name(field.type) +
                            "; allowed is " + wanted);
}

bool Message::take(uint64_t& value) {
  std::string_view rest = bytes_.substr(at_);
  if (!take_varint(rest, value)) return false;
  at_ = bytes_.size() - rest.size();
  return true;
}

// Why there is no number at `at_`.
Error Message::no_number() const {
  if (bytes_.size() - at_ < kMaxVarintBytes)
    return fail(start_ + at_, "the message ends within a number: it is cut short or damaged");
  return fail(start_ + at_, "a number of more than " + std::to_string(kMaxVarintBytes) + " bytes");
}

Result<bool> Message::next(Field& field) {
  if (at_ == bytes_.size()) return false;
  field = {};
  field.at = start_ + at_;
  uint64_t tag = 0;
  if (!take(tag)) return no_number();
  const uint64_t number = tag >> 3, type = tag & 7;
  constexpr uint64_t kMaxNumber = (uint64_t{1} << 29) - 1;
  if (number == 0 || number > kMaxNumber)
    return fail(field.at, "field number " + std::to_string(number) + "; allowed are 1 to " +
                              std::to_string(kMaxNumber));
  field.number = static_cast<uint32_t>(number);
  field.type = static_cast<Type>(type);
  size_t size = 0;
  switch (field.type) {
    case Type::kVarint: {
      if (!take(field.value)) return no_number();
      return true;
    }
    case Type::kFixed64:
      size = 8;
      break;
    case Type::kFixed32:
      size = 4;
      break;
    case Type::kBytes: {
      uint64_t length = 0;
      if (!take(length)) return no_number();
      if (length > bytes_.size() - at_)
        return fail(field.at, "field " + std::to_string(number) + " has " + std::to_string(length) +
                                  " bytes, and the message only " +
                                  std::to_string(bytes_.size() - at_) +
                                  " more: it is cut short or damaged");
      field.bytes = bytes_.substr(at_, static_cast<size_t>(length));
      at_ += static_cast<size_t>(length);
      return true;
    }
    default:
      return fail(field.at, "field " + std::to_string(number) + " has wire type " +
                                std::to_string(type) + "; allowed are 0, 1, 2 and 5");
  }
  if (size > bytes_.size() - at_)
    return fail(field.at, "field " + std::to_string(number) + " ends after the message");
  std::memcpy(&field.value, bytes_.data() + at_, size);
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
    return fail(field.at,
                "messages within messages, more than " + std::to_string(kMaxDepth) + " deep");
  // The bytes of a field are its end, so where they begin follows from this message's bytes.
  const auto from = static_cast<size_t>(inner.data() - bytes_.data());
  return Message(inner, file_, start_ + from, depth_ + 1);
}

}  // namespace twinrun::wire
