// UTF-8, one code point at a time. Decoding never fails: each broken byte reads as U+FFFD.
//
//   for (std::string_view rest = s; !rest.empty();) { char32_t c = take(rest); ... }
#pragma once

#include <string>
#include <string_view>

namespace twinrun::text {

inline constexpr char32_t kReplacement = 0xFFFD;

// Takes the first code point off the front of `rest`, which must not be empty. Overlong forms,
// surrogates and values past U+10FFFF are broken.
inline char32_t take(std::string_view& rest) {
  const auto lead = static_cast<unsigned char>(rest.front());
  rest.remove_prefix(1);
  if (lead < 0x80) return lead;
  const size_t more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
  if (lead < 0xC2 || lead > 0xF4 || rest.size() < more) return kReplacement;
  char32_t c = lead & (0x3Fu >> more);
  for (size_t i = 0; i < more; ++i) {
    const auto byte = static_cast<unsigned char>(rest[i]);
    if ((byte & 0xC0) != 0x80) return kReplacement;
    c = c << 6 | (byte & 0x3Fu);
  }
  const bool overlong = (more == 2 && c < 0x800) || (more == 3 && c < 0x10000);
  if (overlong || (c >= 0xD800 && c < 0xE000) || c > 0x10FFFF) return kReplacement;
  rest.remove_prefix(more);
  return c;
}

inline void append(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

// A code point, or one of our own colour sequences (ESC [ ... m) as a whole. Foreign escape
// sequences never get here, since clean() removes them.
inline std::string_view take_unit(std::string_view& rest) {
  const std::string_view start = rest;
  size_t size = 0;
  if (rest.starts_with("\x1b[") && rest.find('m') != std::string_view::npos) {
    size = rest.find('m') + 1;
    rest.remove_prefix(size);
  } else {
    take(rest);
    size = start.size() - rest.size();
  }
  return start.substr(0, size);
}

// Width of one unit in columns: wide East Asian characters and pictographs take two.
inline int columns(std::string_view unit) {
  if (unit.starts_with('\x1b')) return 0;
  const char32_t c = take(unit);
  const bool wide = (c >= 0x1100 && c <= 0x115F) || (c >= 0x2E80 && c <= 0xA4CF) ||
                    (c >= 0xAC00 && c <= 0xD7A3) || (c >= 0xF900 && c <= 0xFAFF) ||
                    (c >= 0xFE30 && c <= 0xFE6F) || (c >= 0xFF00 && c <= 0xFF60) ||
                    (c >= 0xFFE0 && c <= 0xFFE6) || (c >= 0x1F300 && c <= 0x1FAFF) ||
                    (c >= 0x20000 && c <= 0x3FFFD);
  return wide ? 2 : 1;
}

}  // namespace twinrun::text
