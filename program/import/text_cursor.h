// A position in HLO or MLIR text, with reading of words, bracketed text and line numbers. Only the
// parsers of import/ use it.
//
//   TextCursor at("add.3 = f32[8] add(a, b)");
//   at.word();  at.take("=");           // "add.3", true
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "program/base/result.h"

namespace twinrun {

inline std::string trimmed(std::string_view text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.front())) != 0)
    text.remove_prefix(1);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0)
    text.remove_suffix(1);
  return std::string(text);
}

// The beginning of a line, for errors.
inline std::string shortened(std::string_view text) {
  return trimmed(text.substr(0, std::min<size_t>(text.find('\n'), 40)));
}

inline std::string base_name(std::string_view path) {
  return std::string(path.substr(path.rfind('/') + 1));
}

inline std::optional<int64_t> number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

class TextCursor {
 public:
  TextCursor(std::string_view text) : text_(text) {}

  int line() const { return line_; }
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  // Skips blanks, line ends and comments: /*index=5*/ and // to the end of the line.
  void skip() {
    while (!at_end()) {
      if (std::isspace(static_cast<unsigned char>(peek())) != 0) {
        next();
      } else if (text_.substr(at_, 2) == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        go(end == std::string_view::npos ? text_.size() : end + 2);
      } else if (text_.substr(at_, 2) == "//") {
        rest_of_line();
      } else {
        return;
      }
    }
  }
  bool take(std::string_view token) {
    skip();
    if (!text_.substr(at_).starts_with(token)) return false;
    go(at_ + token.size());
    return true;
  }
  // Reads a name: letters, digits and _ . - (and a leading %, which is dropped); "" if there is
  // none here.
  std::string word() {
    skip();
    if (peek() == '%') next();
    const size_t begin = at_;
    while (!at_end() && is_word(peek())) next();
    return std::string(text_.substr(begin, at_ - begin));
  }
  // The word here, without reading past it.
  std::string peek_word() const {
    TextCursor copy = *this;
    return copy.word();
  }
  // Reads up to the first of `stops` outside of brackets and strings, or up to a closing bracket
  // that was not opened here. MLIR has angle brackets, too; the > of -> is none of them.
  enum class Angles { kNone, kBrackets };
  std::string_view until(std::string_view stops, Angles angles = Angles::kNone) {
    const size_t begin = at_;
    int depth = 0;
    const auto is_angle = [&](char bracket) {
      return angles == Angles::kBrackets && peek() == bracket &&
             !(bracket == '>' && at_ > 0 && text_[at_ - 1] == '-');
    };
    while (!at_end()) {
      const char c = peek();
      if (c == '"') {
        quoted();
        continue;
      }
      if (depth == 0 && stops.find(c) != std::string_view::npos) break;
      if (c == '(' || c == '{' || c == '[' || is_angle('<')) ++depth;
      if (c == ')' || c == '}' || c == ']' || is_angle('>')) {
        if (depth == 0) break;
        --depth;
      }
      next();
    }
    return text_.substr(begin, at_ - begin);
  }
  // Reads the text inside the bracket that opens here and that `close` closes; nothing if it is not
  // closed.
  std::optional<std::string_view> inside(char close) {
    next();
    const std::string_view text = until("", close == '>' ? Angles::kBrackets : Angles::kNone);
    if (peek() != close) return std::nullopt;
    next();
    return text;
  }
  // Reads the text between the quotes that open here, with escapes as they are written.
  std::string_view string() {
    const size_t begin = at_ + 1;
    quoted();
    const size_t end = at_ > begin && text_[at_ - 1] == '"' ? at_ - 1 : at_;
    return text_.substr(begin, end - begin);
  }
  // Skips spaces, tabs and carriage returns, but not newlines.
  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t' || peek() == '\r') next();
  }
  std::string_view rest_of_line() {
    const size_t begin = at_;
    while (!at_end() && peek() != '\n') ++at_;
    return text_.substr(begin, at_ - begin);
  }
  static bool is_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
  }

 private:
  void next() {
    if (text_[at_] == '\n') ++line_;
    ++at_;
  }
  void go(size_t to) {
    while (at_ < to) next();
  }
  void quoted() {
    next();
    while (!at_end() && peek() != '"') {
      if (peek() == '\\') next();
      if (!at_end()) next();
    }
    if (!at_end()) next();
  }

  std::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
};

// Base of the parsers of a file's text: the position, and errors that name the line there, what was
// found and what is allowed.
class TextReader {
 protected:
  TextReader(std::string_view text, std::string file) : at_(text), file_(std::move(file)) {}

  Error error(std::string what, std::string fix = "") const {
    return {std::move(what), fmt::format("{}:{}", file_, at_.line()), std::move(fix)};
  }
  Error unexpected(std::string_view allowed) {
    const int line = at_.line();
    at_.skip();
    std::string found = shortened(at_.rest_of_line());
    return {
        fmt::format("'{}'; allowed: {}", found.empty() ? "the end of the text" : found, allowed),
        fmt::format("{}:{}", file_, line), ""};
  }

  TextCursor at_;
  const std::string file_;
};

}  // namespace twinrun
