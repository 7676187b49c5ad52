// Parses TOML with toml++, whose assertions become errors.
#include "program/base/toml_text.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <string>
#include <vector>

namespace twinrun {
namespace {

struct FailedAssertion : std::exception {};

Error invalid(std::string what, std::string_view file, int64_t line) {
  if (what.starts_with("Error while ")) what = "not valid TOML: " + what.substr(12);
  const bool form = what.find("expected") != std::string::npos;
  return {std::move(what), std::string(file) + ":" + std::to_string(line),
          form ? "write each key on a line of its own, as key = value; strings need quotes" : ""};
}

// Skips a string that begins at `at`; returns the position after it.
size_t after_string(std::string_view text, size_t at, int64_t& line) {
  const char quote = text[at];
  const bool long_one = text.substr(at, 3) == std::string(3, quote);
  const std::string_view end = text.substr(at, long_one ? 3 : 1);
  for (at += end.size(); at < text.size(); ++at) {
    if (text[at] == '\n') {
      if (!long_one) return at;
      ++line;
    }
    if (text.substr(at, end.size()) == end) return at + end.size();
    if (text[at] == '\\' && quote == '"') ++at;
  }
  return text.size();
}

// What the library would not survive: a key of too many parts.
std::optional<Error> refused(std::string_view text, std::string_view file) {
  int64_t line = 1;
  int dots = 0;
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      i = after_string(text, i, line);
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '\n') ++line;
    if (c == '.' && ++dots >= kMostKeyParts)
      return invalid(
          "not valid TOML here: a key of more than " + std::to_string(kMostKeyParts) + " parts",
          file, line);
    if (std::string_view("\n,=[]{}").find(c) != std::string_view::npos) dots = 0;
    ++i;
  }
  return std::nullopt;
}

bool asserts(std::string_view text) {
  try {
    (void)toml::parse(text);
    return false;
  } catch (const FailedAssertion&) {
    return true;
  }
}

// Which line it is, the library does not say. It reads in order, so every text that ends after that
// line fails as the whole does: it is found by halving.
int64_t line_of_assertion(std::string_view text) {
  std::vector<size_t> ends;
  for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n', end + 1))
    ends.push_back(end);
  const auto first =
      std::ranges::partition_point(ends, [&](size_t end) { return !asserts(text.substr(0, end)); });
  return first - ends.begin() + 1;
}

}  // namespace

void fail_toml_assertion() { throw FailedAssertion(); }

Result<toml::table> parse_toml_text(std::string_view text, std::string_view file) {
  if (auto error = refused(text, file)) return *std::move(error);
  try {
    toml::parse_result parsed = toml::parse(text);
    if (parsed) return std::move(parsed).table();
    const toml::parse_error& error = parsed.error();
    return invalid(std::string(error.description()), file, error.source().begin.line);
  } catch (const FailedAssertion&) {
    return invalid("not valid TOML: expected a key or a value", file, line_of_assertion(text));
  }
}

}  // namespace twinrun
