// Zip archives in memory, on top of libarchive: members by name; nothing is ever unpacked to disk.
// Against zip bombs, an archive yields at most 256 MiB and 100 times its own size, never 1032 times
// (the most that deflate can pack, unless members overlap), and at most `max_unpacked` bytes more
// than its own size; a member that declares more is refused before anything of it is read. Written
// members are dated 1980-01-01 and stand in the given order; equal members make equal bytes (if
// deflated: with the same zlib).
//
//   TWINRUN_ASSIGN(auto members, read_zip(bytes, path, [](const std::string&) { return true; }));
//   TWINRUN_ASSIGN(auto bytes, to_zip(members, path));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "program/base/result.h"

namespace twinrun {

struct ZipMember {
  std::string name;
  std::vector<std::byte> bytes;  // empty if the member was not read
  bool read = false;
};

inline constexpr uint64_t kMaxUnpacked = uint64_t{8} << 30;

// All members except folders, in the archive's order; reads the content of those whose name
// `wanted` accepts. Errors: not a zip archive, encrypted, damaged (CRC-32), names that occur twice
// or are not a plain relative path; members to read that are packed by another method than deflate.
Result<std::vector<ZipMember>> read_zip(std::span<const std::byte> bytes, const std::string& where,
                                        const std::function<bool(const std::string&)>& wanted,
                                        uint64_t max_unpacked = kMaxUnpacked);

enum class ZipPacking : uint8_t { kStored, kDeflated };
Result<std::vector<std::byte>> to_zip(const std::vector<ZipMember>& members,
                                      const std::string& where,
                                      ZipPacking packing = ZipPacking::kStored);

}  // namespace twinrun
