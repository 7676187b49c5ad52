// Reads --shard I/N, and decides to which shard a case belongs.
#include "harness/campaign/shard.h"

#include <fmt/format.h>

#include <boost/crc.hpp>
#include <charconv>
#include <optional>

namespace twinrun::campaign {
namespace {

std::optional<int64_t> whole_number(std::string_view text) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

Result<Shard> parse_shard(const std::string& text) {
  const size_t slash = text.find('/');
  const std::string_view all(text);
  const auto index = whole_number(all.substr(0, std::min(slash, all.size())));
  const auto count =
      slash == std::string::npos ? std::nullopt : whole_number(all.substr(slash + 1));
  if (!index || !count)
    return Error{fmt::format("found '{}'; expected I/N, shard I of N", text.substr(0, 40)),
                 "--shard", "shards count from 0: 0/8 is the first of eight, 7/8 the last"};
  if (*count < 1 || *count > kMaxShards)
    return Error{fmt::format("{} shards; allowed: 1 to {}", *count, kMaxShards), "--shard", ""};
  if (*index < 0 || *index >= *count)
    return Error{fmt::format("shard {} of {}; allowed: 0/{} to {}/{}", *index, *count, *count,
                             *count - 1, *count),
                 "--shard", "shards count from 0"};
  return Shard{*index, *count};
}

std::string to_string(const Shard& shard) { return fmt::format("{}/{}", shard.index, shard.count); }

std::string folder_of(const Shard& shard) {
  return fmt::format("shard-{}-of-{}", shard.index, shard.count);
}

int64_t shard_of(std::string_view id, int64_t count) {
  boost::crc_32_type crc;
  crc.process_bytes(id.data(), id.size());
  return static_cast<int64_t>(crc.checksum()) % count;
}

}  // namespace twinrun::campaign
