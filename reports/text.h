// How numbers, sentences, tables and curves look as text. Shared by every format that people read.
// Strings come from scenarios, programs and foreign engines: clean() makes them safe to show first.
//
//   number(0.000123)                         // "1.23e-04"
//   wrap(clean(sentence), 80)                // lines of at most 80 columns
//   Table t({{.title = "run"}, {.title = "loss", .right = true}});
//   t.add({"R", number(0.2311)});  t.lines(80, 2);
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "reports/report.h"

namespace twinrun::text {

// What a class means, for a reader who has never seen the tool. No full stop.
std::string_view meaning(VerdictClass verdict);

// Fixed notation within [1e-3, 1e6), else scientific; "nan", "inf", "-inf"; 0 is "0".
std::string number(double value, int digits = 3);
std::string signed_number(double value, int digits = 3);  // with "+" before what is not negative
std::string power_of_two(double value);                   // "2^-9.1"; number() when not positive
std::string percent(double fraction, int decimals = 2);   // 0.9297 -> "92.97%"; "-" for NaN
// Whole percent; ">99%" and "<1%" where rounding would claim all or nothing.
std::string share(double fraction);
std::string count(int64_t value);                          // 4608 -> "4,608"
std::string plural(int64_t value, std::string_view noun);  // "1 step", "3 steps"
std::string duration(double seconds);  // "12 ms", "3.2 s", "4 min 05 s", "1 h 02 min"
// The statistic against its bound, in words: "0.0312, 4100 times its bound of 7.60e-06".
std::string against_bound(double value, double bound);
std::string digest8(std::string_view digest);  // the first 8 characters, "-" for none

// One line without control characters, bidirectional overrides or broken UTF-8 (shown as U+FFFD);
// line ends and tabs are spaces. With unicode false: ASCII, known signs spelled out ("x", "->").
std::string clean(std::string_view raw, bool unicode = true);
// The same for several lines; no line for an empty text.
std::vector<std::string> clean_lines(std::string_view raw, bool unicode = true);

// Columns on a terminal: wide East Asian characters take two, our own colour sequences none.
int display_width(std::string_view text);
// Cuts to `width` columns, the last of them `ellipsis`.
std::string clip(std::string_view text, int width, std::string_view ellipsis = "…");
// Breaks at spaces; a word longer than a line is cut. At least one line, maybe empty.
std::vector<std::string> wrap(std::string_view text, int width);
// A shell command over several lines that can be pasted back: broken between words with a final
// backslash, inside a word only when it alone is longer than a line.
std::vector<std::string> command_lines(std::string_view command, int width, int indent);

struct Column {
  std::string title;
  bool right = false;     // aligned to the right
  bool flexible = false;  // wraps when the line is too short
  int drop = 0;           // when wrapping does not help, the highest goes first; 0 stays
};

class Table {
 public:
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  void add(std::vector<std::string> row);  // one cell for each column, already clean
  bool empty() const { return rows_.empty(); }
  // Titles and rows without a frame. A column without any content is left out.
  std::vector<std::string> lines(int width, int indent) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// At most `width` blocks over [low, high]; a point that is not finite shows as "!".
std::string sparkline(std::span<const float> values, int width, double low, double high,
                      bool unicode);

}  // namespace twinrun::text
