// The one way to the terminal: all that a verb prints, on standard output or standard error, passes
// through here, and tests/layering forbids any other. Names in scenarios, programs, files, engines
// and traces are foreign text; a terminal would obey the escape sequences in them. So characters
// that are not printable (C0 and C1 controls, DEL, bidirectional overrides, broken UTF-8) are
// replaced by U+FFFD. Clean text is printed byte for byte.
//
//   print("{}: {} steps\n", path, steps);          // line ends in `path` become blanks
//   print_text(resolved);                          // several lines, as they are
//   print_document(json.dump(2) + "\n");           // bytes for other programs
//   say(fmt::format("warning: {}\n", warning));    // on standard error
#pragma once

#include <fmt/format.h>

#include <iosfwd>
#include <string>
#include <string_view>
#include <type_traits>

#include "reports/text.h"

namespace twinrun::cli {

// Whether the colour sequences in a text are our own: every foreign string in it has passed
// clean().
enum class Colors : bool { kNone, kOwn };

// Errors of writing to standard output are found at the end, by main().
void print_text(std::string_view text, Colors colors = Colors::kNone);

// JSON, TOML, CSV, pages: the characters above as escapes (\u0085), so that the values stay.
void print_document(std::string_view text);
bool has_printed_document();

// Prints to standard error. Errors of writing are ignored: a closed terminal or full disk must not
// end a run.
void say(std::string_view text, Colors colors = Colors::kNone);
// The same for a line of progress, which on a terminal replaces the live line before it.
void say_over(std::string_view text);

// From now on nothing is printed, or printed again: of several ranks, one prints.
void set_silent(bool silent);

// Standard output as a stream of messages to another program, for `serve`.
std::ostream& messages_out();

namespace detail {

template <typename T>
decltype(auto) one_line(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return text::clean(std::string_view(value));
  } else {
    return (value);
  }
}

}  // namespace detail

// fmt::print whose strings are each one line, however foreign they are.
template <typename... T>
void print(fmt::format_string<T...> format, T&&... values) {
  const auto printed = [&](const auto&... shown) {
    print_text(fmt::vformat(format, fmt::make_format_args(shown...)));
  };
  printed(detail::one_line(values)...);
}

}  // namespace twinrun::cli
