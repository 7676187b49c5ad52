// Zip archives in memory, over libarchive: members by name, nothing is ever unpacked to a disk.
// Against bombs: an archive yields no more than deflate can pack (1032 bytes for one, so members do
// not overlap), and no more than `most_unpacked` beyond its own size. Written: dated 1980-01-01, in
// the given order; equal members make equal bytes (deflated: with the same zlib).
//
//   TWINRUN_ASSIGN(auto members, read_zip(bytes, path, [](const std::string& name) { return true; }));
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
  std::vector<std::byte> bytes;  // empty where it was not wanted
  bool read = false;
};

inline constexpr uint64_t kMostUnpacked = uint64_t{8} << 30;

// Every member but folders, in the archive's order, with the content of those that are wanted.
// Errors: no zip, encrypted, damaged (CRC-32), names that occur twice or are no plain relative path.
Result<std::vector<ZipMember>> read_zip(std::span<const std::byte> bytes, const std::string& where,
                                        const std::function<bool(const std::string&)>& wanted,
                                        uint64_t most_unpacked = kMostUnpacked);

enum class ZipPacking : uint8_t { kStored, kDeflated };
Result<std::vector<std::byte>> to_zip(const std::vector<ZipMember>& members,
                                      const std::string& where,
                                      ZipPacking packing = ZipPacking::kStored);

}  // namespace twinrun
