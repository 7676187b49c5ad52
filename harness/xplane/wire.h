// Messages of a capture in the wire format of protocol buffers, one field at a time and without
// copies: events are counted in millions, and a hostile file must not cost more memory than its own
// size. A field that cannot be read ends the walk; what it was is not told.
//
//   wire::Fields fields(bytes);
//   while (fields.next()) if (fields.number() == 2) name = fields.bytes();
//   if (fields.broken()) ...
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "program/base/protobuf_wire.h"

namespace twinrun::wire {

class Fields {
 public:
  explicit Fields(std::string_view message) : message_(message, "") {}

  // False at the end, and where the bytes are no field: then broken().
  bool next() {
    if (broken_) return false;
    const Result<bool> more = message_.next(field_);
    broken_ = !more;
    return more && *more;
  }
  bool broken() const { return broken_; }
  uint64_t number() const { return field_.number; }
  // Of the field, as it is stored; empty or 0 for a field of another type.
  uint64_t value() const { return field_.value; }
  int64_t integer() const { return static_cast<int64_t>(field_.value); }
  double real() const { return std::bit_cast<double>(field_.value); }
  std::string_view bytes() const { return field_.bytes; }

 private:
  Message message_;
  Field field_;
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
