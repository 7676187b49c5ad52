// A place in HLO text: words, balanced stretches, line numbers. Used by the parser alone.
#pragma once

#include <cctype>
#include <string>
#include <string_view>

namespace twinrun {

class HloCursor {
 public:
  HloCursor(std::string_view text) : text_(text) {}

  int line() const { return line_; }
  bool at_end() const { return at_ >= text_.size(); }
  char peek() const { return at_end() ? '\0' : text_[at_]; }
  // Over blanks, line ends and comments: /*index=5*/ and // to the end of the line.
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
  // A name: letters, digits and _ . - (and a leading %, which is dropped); "" if none stands here.
  std::string word() {
    skip();
    if (peek() == '%') next();
    const size_t begin = at_;
    while (!at_end() && is_word(peek())) next();
    return std::string(text_.substr(begin, at_ - begin));
  }
  // The word here, left in its place.
  std::string peek_word() const {
    HloCursor copy = *this;
    return copy.word();
  }
  // Up to the first of `stops` outside of brackets and strings, or to a bracket that closes none opened here.
  std::string_view until(std::string_view stops) {
    const size_t begin = at_;
    int depth = 0;
    while (!at_end()) {
      const char c = peek();
      if (c == '"') {
        quoted();
        continue;
      }
      if (depth == 0 && stops.find(c) != std::string_view::npos) break;
      if (c == '(' || c == '{' || c == '[') ++depth;
      if (c == ')' || c == '}' || c == ']') {
        if (depth == 0) break;
        --depth;
      }
      next();
    }
    return text_.substr(begin, at_ - begin);
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

}  // namespace twinrun
