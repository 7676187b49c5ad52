// Writes messages in the wire format of protocol buffers, to test what reads them.
//
//   Message stat = Message().number(1, 4).text(5, "dot.1");
//   Message event = Message().number(1, 7).message(4, stat);   event.bytes
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace twinrun::wire {

struct Message {
  std::string bytes;

  Message& number(uint64_t field, uint64_t value) {
    varint(field << 3);
    varint(value);
    return *this;
  }
  Message& real(uint64_t field, double value) {
    varint(field << 3 | 1);
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes.append(raw, sizeof raw);
    return *this;
  }
  Message& text(uint64_t field, std::string_view value) {
    varint(field << 3 | 2);
    varint(value.size());
    bytes += value;
    return *this;
  }
  Message& message(uint64_t field, const Message& value) { return text(field, value.bytes); }

 private:
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
  }
};

}  // namespace twinrun::wire
