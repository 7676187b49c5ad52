// The records of a trace file, as its reader and its writer see them (docs/reference/trace-format.md).
#pragma once

#include <zlib.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace twinrun::trace {

inline constexpr std::string_view kMagic = "TWINTRC2";
inline constexpr size_t kFileHeader = 64, kRecordHeader = 24;

enum Kind : uint32_t {
  kPadding = 0,
  kMeta = 1,
  kString = 2,
  kData = 3,
  kCall = 4,
  kEnd = 5,
  kGraph = 6,
  kStep = 7,
  kPlace = 8,
  kUpdate = 9,
  kFunction = 10
};

inline uint32_t checksum(std::span<const std::byte> bytes, uint32_t before) {
  return static_cast<uint32_t>(
      crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}
// Of a record's header, without the checksum itself; the payload's continues it.
inline uint32_t checksum_of_header(std::span<const std::byte> header) {
  return checksum(header.subspan(8, 16), checksum(header.first(4), 0));
}

}  // namespace twinrun::trace
