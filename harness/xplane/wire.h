// The wire format of protocol buffers, one field at a time and without copies: events of a capture
// are counted in millions, and a hostile file must not cost more memory than its own size.
// Source: protobuf.dev/programming-guides/encoding.
//
//   wire::Fields fields(bytes);
//   while (fields.next()) if (fields.number() == 2) name = fields.bytes();
//   if (fields.broken()) ...
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace twinrun::wire {

// Takes a number off the front; false where it is cut short or has more than 64 bits' groups.
inline bool take_varint(std::string_view& rest, uint64_t& out) {
  out = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    if (rest.empty()) return false;
    const auto byte = static_cast<unsigned char>(rest.front());
    rest.remove_prefix(1);
    out |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

class Fields {
 public:
  explicit Fields(std::string_view message) : rest_(message) {}

  // False at the end, and where the bytes are no field: then broken().
  bool next() {
    if (rest_.empty() || broken_) return false;
    uint64_t tag = 0;
    if (!varint(tag)) return fail();
    number_ = tag >> 3;
    value_ = 0;
    bytes_ = {};
    if (number_ == 0) return fail();
    switch (tag & 7) {
      case 0:
        return varint(value_) || fail();
      case 1:
        return fixed(8) || fail();
      case 2: {
        uint64_t size = 0;
        if (!varint(size) || size > rest_.size()) return fail();
        bytes_ = rest_.substr(0, size);
        rest_.remove_prefix(size);
        return true;
      }
      case 5:
        return fixed(4) || fail();
      default:  // groups, which no message of a capture has
        return fail();
    }
  }
  bool broken() const { return broken_; }
  uint64_t number() const { return number_; }
  // Of the field, as it is stored; empty or 0 for a field of another type.
  uint64_t value() const { return value_; }
  int64_t integer() const { return static_cast<int64_t>(value_); }
  double real() const { return std::bit_cast<double>(value_); }
  std::string_view bytes() const { return bytes_; }

 private:
  bool fail() {
    broken_ = true;
    return false;
  }
  bool varint(uint64_t& out) { return take_varint(rest_, out); }
  bool fixed(size_t size) {
    static_assert(std::endian::native == std::endian::little, "fixed fields are little-endian");
    if (rest_.size() < size) return false;
    std::memcpy(&value_, rest_.data(), size);
    rest_.remove_prefix(size);
    return true;
  }

  std::string_view rest_, bytes_;
  uint64_t number_ = 0, value_ = 0;
  bool broken_ = false;
};

// The numbers of a packed repeated field.
class Packed {
 public:
  explicit Packed(std::string_view bytes) : rest_(bytes) {}
  // False at the end, and where a number is cut short.
  bool next() { return !rest_.empty() && take_varint(rest_, value_); }
  int64_t integer() const { return static_cast<int64_t>(value_); }

 private:
  std::string_view rest_;
  uint64_t value_ = 0;
};

}  // namespace twinrun::wire
