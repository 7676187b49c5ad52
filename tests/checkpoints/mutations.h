// Truncations of a good file at every length. tests/fuzz has the other mutations.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace twinrun::samples {

// Calls `read` for every proper prefix of the file; `read` returns whether it accepted the bytes.
// Returns the number of prefixes that were accepted.
inline int truncations_taken(const std::string& good,
                             const std::function<bool(const std::string&)>& read) {
  int taken = 0;
  for (size_t length = 0; length < good.size(); ++length) {
    taken += read(good.substr(0, length)) ? 1 : 0;
  }
  return taken;
}

}  // namespace twinrun::samples
