// Cleans the lines of a log: colours, control characters, and the prefixes of loggers.
#include <array>

#include "harness/check/log.h"

namespace twinrun::check {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Skips a terminal's escape sequence that begins at text[at]; returns the index after it.
size_t after_escape(std::string_view text, size_t at) {
  if (++at >= text.size()) return at;
  if (text[at] == '[') {
    while (++at < text.size() && (text[at] < 0x40 || text[at] > 0x7e)) {
    }
    return at + 1;
  }
  if (text[at] != ']') return at + 1;
  while (++at < text.size() && text[at] != '\a' && text[at] != '\x1b') {
  }
  return at < text.size() && text[at] == '\x1b' ? at + 2 : at + 1;
}

struct Replacement {
  std::string_view from;
  char to;
};
// What editors and web pages make of quotes and spaces, and the frames of Python's rich tracebacks.
constexpr std::array<Replacement, 7> kReplacements = {{{"\u2018", '\''},
                                                       {"\u2019", '\''},
                                                       {"\u201c", '"'},
                                                       {"\u201d", '"'},
                                                       {"\u00a0", ' '},
                                                       {"\u2502", ' '},
                                                       {"\u2503", ' '}}};

std::string plain(std::string_view raw) {
  std::string out;
  out.reserve(raw.size());
  for (size_t i = 0; i < raw.size();) {
    const char c = raw[i];
    if (c == '\x1b') {
      i = after_escape(raw, i);
      continue;
    }
    if (c == '\t' || c == '\r') {
      out += ' ';
    } else if (static_cast<unsigned char>(c) >= 0x80) {
      const Replacement* known = nullptr;
      for (const Replacement& r : kReplacements) {
        if (raw.substr(i).starts_with(r.from)) known = &r;
      }
      if (known != nullptr) {
        out += known->to;
        i += known->from.size();
        continue;
      }
      out += c;
    } else if (c >= ' ' && c != '\x7f') {
      out += c;
    }
    ++i;
  }
  return out;
}

// Prefixes of messages. '#' is a digit, '+' digits, '^' the letter of a level, '~' anything but
// spaces up to the next character of the shape, '_' spaces.
constexpr std::string_view kPrefixes[] = {
    "^####_##:##:+.+_+_~]_",         // glog, absl: I0902 03:33:36.516501 1400 basic.py:260]
    "####-##-##_##:##:##.+:_^_~]_",  // TensorFlow: 2020-04-03 09:00:45.480838: W a/b.cc:157]
    "####-##-##_##:##:##.+:_^_+_~]_",
    "####-##-##T##:##:##.+Z_",
    "####-##-##T##:##:##Z_",
    "####-##-##_##:##:##,+_",  // Python's logging
    "####-##-##_##:##:##_",
    "[rank+]:_",
    "(~_pid=+)_",  // Ray: (train_fn pid=123)
    "(pid=~)_",
    "INFO:tensorflow:",
    "WARNING:tensorflow:",
    "ERROR:tensorflow:",
    "INFO:absl:",
    "WARNING:absl:",
    "ERROR:absl:",
    "err:_",
    ">_",  // quoted
    "|_",
    "E__",  // pytest
};

// The length of the prefix, or 0.
size_t prefix_length(std::string_view text, std::string_view shape) {
  size_t at = 0;
  const auto run = [&](auto fits) {
    const size_t from = at;
    while (at < text.size() && fits(text[at])) ++at;
    return at > from;
  };
  for (size_t i = 0; i < shape.size(); ++i) {
    const char s = shape[i];
    const char next = i + 1 == shape.size() || shape[i + 1] == '_' ? ' ' : shape[i + 1];
    bool fits = true;
    if (s == '+') {
      fits = run(is_digit);
    } else if (s == '_') {
      fits = run([](char c) { return c == ' '; });
    } else if (s == '~') {
      fits = run([next](char c) { return c != ' ' && c != next; });
    } else if (at >= text.size()) {
      return 0;
    } else {
      fits = s == '#'   ? is_digit(text[at])
             : s == '^' ? std::string_view("IWEFD").find(text[at]) != std::string_view::npos
                        : text[at] == s;
      ++at;
    }
    if (!fits) return 0;
  }
  return at;
}

bool is_dropped(char c) { return c == ' ' || c == '`'; }

}  // namespace

std::string letters_of(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (!is_dropped(c)) out += c;
  }
  return out;
}

LogLine clean_line(std::string_view raw, size_t number) {
  LogLine line;
  line.number = number;
  const std::string all = plain(raw);
  std::string_view text = all;
  constexpr int kMaxPrefixes = 4;
  for (int i = 0; i < kMaxPrefixes; ++i) {
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
    size_t length = 0;
    for (const std::string_view shape : kPrefixes) {
      if (length == 0) length = prefix_length(text, shape);
    }
    if (length == 0) break;
    text.remove_prefix(length);
  }
  line.text = text;
  line.letters.reserve(text.size());
  line.at.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (is_dropped(text[i])) continue;
    line.letters += text[i];
    line.at.push_back(static_cast<uint32_t>(i));
  }
  return line;
}

}  // namespace twinrun::check
