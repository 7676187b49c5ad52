// Reads messages in protobuf's wire format, field by field, without their .proto files and without
// copies. Hostile bytes give an error that names the byte; nothing that is read allocates.
// Format: https://protobuf.dev/programming-guides/encoding/. Used for TensorFlow's graphs.
//
//   wire::Message graph(bytes, "model.pb");
//   wire::Field f;
//   while (true) {
//     TWINRUN_ASSIGN(const bool more, graph.next(f));
//     if (!more) break;
//     if (f.number == 1) TWINRUN_ASSIGN(wire::Message node, graph.message(f));
//   }
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "program/base/result.h"

namespace twinrun::wire {

// How deep messages may lie in each other; protobuf's own limit is the same.
inline constexpr int kMaxDepth = 100;

inline constexpr size_t kMaxVarintBytes = 10;  // 64 bits, seven a byte

// Takes a varint off the front of `rest`; false where it is cut short or has more bytes than that.
inline bool take_varint(std::string_view& rest, uint64_t& out) {
  const size_t most = rest.size() < kMaxVarintBytes ? rest.size() : kMaxVarintBytes;
  out = 0;
  for (size_t i = 0; i < most; ++i) {
    const auto byte = static_cast<uint8_t>(rest[i]);
    // The tenth byte has the last bit only; protobuf drops what is above it.
    out |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
    if (byte < 0x80) {
      rest.remove_prefix(i + 1);
      return true;
    }
  }
  return false;
}

// The values are those of the format.
enum class Type : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

struct Field {
  uint32_t number = 0;
  Type type = Type::kVarint;
  uint64_t value = 0;      // of a varint or a fixed field
  std::string_view bytes;  // of a string, a message or a packed list
  size_t at = 0;           // where the field begins, in bytes from the start of the file
};

// A message, or the rest of it. `file` must outlive it, and so must the bytes.
class Message {
 public:
  Message(std::string_view bytes, std::string_view file) : Message(bytes, file, 0, 0) {}

  // Reads the next field. False: the message ends here. After an error, do not call it again.
  Result<bool> next(Field& field);

  // What a field of this message holds. Errors: it is of another type.
  Result<std::string_view> bytes(const Field& field) const;
  Result<uint64_t> number(const Field& field) const;  // a varint or a fixed field
  Result<Message> message(const Field& field) const;
  // Calls `add(value)` for the varints of a repeated field, which is packed or not.
  template <typename Add>
  Status numbers(const Field& field, const Add& add) const;

  Error fail(size_t at, std::string what) const;  // `at`: as Field::at

 private:
  Message(std::string_view bytes, std::string_view file, size_t start, int depth)
      : bytes_(bytes), file_(file), start_(start), depth_(depth) {}
  bool take(uint64_t& value);
  Error no_number() const;
  Error wrong_type(const Field& field, const char* wanted) const;

  std::string_view bytes_, file_;
  size_t start_, at_ = 0;  // of this message in the file; of what comes next in this message
  int depth_;
};

template <typename Add>
Status Message::numbers(const Field& field, const Add& add) const {
  if (field.type != Type::kBytes) {
    add(field.value);
    return Ok{};
  }
  Message packed(field.bytes, file_, field.at, depth_);
  while (packed.at_ < packed.bytes_.size()) {
    uint64_t value = 0;
    if (!packed.take(value)) return packed.no_number();
    add(value);
  }
  return Ok{};
}

}  // namespace twinrun::wire
