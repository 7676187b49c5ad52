// Makes damaged files from a good one: truncated at every length, and with every byte changed in
// several ways. A reader must return a value or an error for each; a crash or a sanitizer report
// ends the test.
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

// Changes every `stride`-th byte: flips its lowest bit, its highest bit and all bits, and sets it
// to extreme values. Calls `read` for each.
inline void for_each_changed_byte(const std::string& good, size_t stride,
                                  const std::function<void(const std::string&)>& read) {
  std::string bad = good;
  for (size_t i = 0; i < good.size(); i += stride) {
    for (const int change : {0x01, 0x80, 0xFF}) {
      bad[i] = static_cast<char>(good[i] ^ change);
      read(bad);
    }
    for (const char value : {'\x00', '\xFF', '\x7F'}) {
      bad[i] = value;
      read(bad);
    }
    bad[i] = good[i];
  }
}

}  // namespace twinrun::samples
