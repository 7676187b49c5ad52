// Numbers to be added to elements of storages, by their position in them: a direction in which weights
// are moved.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

namespace twinrun {

using Moves = std::unordered_map<uint64_t, std::vector<double>>;

inline double norm_of(const Moves& moves) {
  double squares = 0;
  for (const auto& [storage, cells] : moves)
    for (const double x : cells) squares += x * x;
  return std::sqrt(squares);
}
inline double dot(const Moves& a, const Moves& b) {
  double sum = 0;
  for (const auto& [storage, cells] : a) {
    const auto other = b.find(storage);
    if (other == b.end()) continue;
    for (size_t i = 0; i < std::min(cells.size(), other->second.size()); ++i)
      sum += cells[i] * other->second[i];
  }
  return sum;
}
inline Moves scaled(Moves moves, double by) {
  for (auto& [storage, cells] : moves)
    for (double& x : cells) x *= by;
  return moves;
}

}  // namespace twinrun
