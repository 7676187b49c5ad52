// Counts what ranks exchange, and the exchanges that are made of others.
#include "backends/core/communicator.h"

#include <algorithm>
#include <string>

namespace twinrun {

void Communicator::all_gather(std::span<std::byte> all, std::span<const size_t> offsets) {
  const auto r = static_cast<size_t>(rank_);
  traffic_.messages += ranks_ - 1;
  traffic_.bytes += (ranks_ - 1) * static_cast<int64_t>(offsets[r + 1] - offsets[r]);
  move_all(all, offsets);
}

void Communicator::shift(std::span<const std::byte> to_next, std::span<std::byte> from_previous) {
  traffic_.messages += to_next.empty() ? 0 : 1;
  traffic_.bytes += static_cast<int64_t>(to_next.size());
  move_on(to_next, from_previous);
}

bool any_rank(Communicator* ranks, bool mine) {
  if (ranks == nullptr) return mine;
  const std::byte flag{static_cast<unsigned char>(mine)};
  return std::ranges::any_of(from_all_ranks(*ranks, {&flag, 1}),
                             [](const auto& theirs) { return theirs[0] != std::byte{0}; });
}

std::vector<std::vector<std::byte>> from_all_ranks(Communicator& ranks,
                                                   std::span<const std::byte> mine) {
  const auto n = static_cast<size_t>(ranks.ranks());
  std::vector<size_t> offsets;
  for (size_t r = 0; r <= n; ++r) offsets.push_back(r * mine.size());
  std::vector<std::byte> all(offsets.back());
  std::ranges::copy(
      mine, all.begin() + static_cast<std::ptrdiff_t>(offsets[static_cast<size_t>(ranks.rank())]));
  ranks.all_gather(all, offsets);
  std::vector<std::vector<std::byte>> parts;
  for (size_t r = 0; r < n; ++r) {
    parts.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(offsets[r]),
                       all.begin() + static_cast<std::ptrdiff_t>(offsets[r + 1]));
  }
  return parts;
}

CoreBlock block_of(int rank, int ranks, int cores) {
  const auto at = [&](int64_t r) { return static_cast<size_t>(r * cores / ranks); };
  return {at(rank), at(rank + 1)};
}

Status check_ranks(const Communicator* ranks, int cores) {
  if (ranks == nullptr || cores == 1 || ranks->ranks() <= cores) return Ok{};
  return Error{std::to_string(ranks->ranks()) + " ranks for " + std::to_string(cores) + " cores",
               "", "start as many ranks as there are cores, or fewer"};
}

}  // namespace twinrun
