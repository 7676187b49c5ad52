// What a damaged or hostile file may look like, made from a good one: cut at every length, and with
// every byte changed in several ways. A reader is to answer each with a value or an error; a crash
// or a sanitizer's report ends the test.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace twinrun::samples {

// Calls `read` for every proper prefix; it returns whether it took the bytes for a good file.
// The count of those that it took.
inline int truncations_taken(const std::string& good,
                             const std::function<bool(const std::string&)>& read) {
  int taken = 0;
  for (size_t length = 0; length < good.size(); ++length) {
    taken += read(good.substr(0, length)) ? 1 : 0;
  }
  return taken;
}

// One bit, the highest bit, all bits, and the extremes of a byte, at every `stride`-th place.
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
