// Writes protobuf's wire format, to test what reads it.
//
//   bytes(4, number(1, 7))                                            // a field with a message
//   Written stat = Written().number(1, 4).text(5, "dot.1");           stat.bytes
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace twinrun::wire {

inline std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}
inline std::string number(uint32_t field, int64_t value) {
  return varint(uint64_t{field} << 3) + varint(static_cast<uint64_t>(value));
}
inline std::string bytes(uint32_t field, std::string_view content) {
  return varint((uint64_t{field} << 3) | 2) + varint(content.size()) + std::string(content);
}
inline std::string entry(uint32_t field, std::string_view key, std::string_view value) {
  return bytes(field, bytes(1, key) + bytes(2, value));
}

using Parts = std::vector<std::string>;
inline std::string all(const Parts& parts) {
  std::string out;
  for (const std::string& part : parts) out += part;
  return out;
}

// A message, field after field.
struct Written {
  std::string bytes;

  Written& number(uint32_t field, uint64_t value) {
    bytes += wire::number(field, static_cast<int64_t>(value));
    return *this;
  }
  Written& real(uint32_t field, double value) {
    char raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes += varint(uint64_t{field} << 3 | 1) + std::string(raw, sizeof raw);
    return *this;
  }
  Written& text(uint32_t field, std::string_view value) {
    bytes += wire::bytes(field, value);
    return *this;
  }
  Written& message(uint32_t field, const Written& value) { return text(field, value.bytes); }
};

}  // namespace twinrun::wire
