// A shard of a campaign: the cases whose id falls to one of N shares. A campaign is a set of cases
// that run independently: cases of a drill, paired seeds, versions of released packages.
//
//   TWINRUN_ASSIGN(const Shard shard, parse_shard("3/8"));     // from 0/8 to 7/8
//   if (has(shard, "engine.drill_mlp.1.17")) ...
//   std::filesystem::path(out) / folder_of(shard);             // out/shard-3-of-8
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "program/base/result.h"

namespace twinrun::campaign {

inline constexpr int64_t kMaxShards = 100'000;

// Shards count from 0, as the array tasks of Slurm and the indexed jobs of Kubernetes can do.
struct Shard {
  int64_t index = 0, count = 1;
  bool whole() const { return count == 1; }
  auto operator<=>(const Shard&) const = default;
};

// Errors: not I/N; I is not from 0 to N - 1; N is not from 1 to kMaxShards.
Result<Shard> parse_shard(const std::string& text);
std::string to_string(const Shard& shard);  // "3/8"
// The name of a shard's folder within that of its campaign: "shard-3-of-8".
std::string folder_of(const Shard& shard);

// The shard, of `count`, to which a case belongs: the CRC-32 of zlib over the id's UTF-8 bytes,
// modulo `count`. In Python: zlib.crc32(id.encode()) % count. It depends on nothing else, so every
// machine gives a case to the same shard, and shards may run anywhere and in any order.
int64_t shard_of(std::string_view id, int64_t count);
inline bool has(const Shard& shard, std::string_view id) {
  return shard_of(id, shard.count) == shard.index;
}

}  // namespace twinrun::campaign
