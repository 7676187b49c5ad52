// How numbers, sentences, tables and curves look as text, shared by every format that people read.
// Strings come from scenarios, programs and foreign engines: pass them through clean() first.
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

// For readers who have never seen the tool, and without a full stop: what a class means; what a
// level of evidence rests on ("" for an unknown one); the terms that a report uses, one per line.
std::string_view meaning(VerdictClass verdict);
std::string_view meaning(char level);
std::span<const std::string> glossary();
// The engine's name for readers: "tpu, 8 cores" becomes "emulated TPU, 8 cores", because it is not
// a real TPU; other names stay. The result is not cleaned.
std::string engine_name(std::string_view id);

// Fixed notation within [1e-3, 1e6), else scientific; "nan", "inf", "-inf"; 0 is "0".
std::string number(double value, int digits = 3);
std::string signed_number(double value, int digits = 3);  // "+" before non-negative values
std::string power_of_two(double value);                   // "2^-9.1"; number() when not positive
std::string percent(double fraction, int decimals = 2);   // 0.9297 -> "92.97%"; "-" for NaN
// Whole percent; ">99%" and "<1%" where rounding would give 100% or 0%.
std::string share(double fraction);
std::string count(int64_t value);                          // 4608 -> "4,608"
std::string plural(int64_t value, std::string_view noun);  // "1 step", "3 steps"
std::string duration(double seconds);  // "12 ms", "3.2 s", "4 min 05 s", "1 h 02 min"
// "4130", "766,000", "2.39 million"; a value just above 1 is not rounded to 1.
std::string magnitude(double ratio);
std::string times(double ratio);  // "4130 times"
// A part of a whole: "3.71%"; below 0.1 %, "1.30e-07 of its size".
std::string relative(double fraction);
std::string interval(double low, double high);  // "[-0.0152, +0.00154]"
// A number and its bound: "0.0312; allowed 7.57e-06 (4130 times)".
std::string against_bound(double value, double bound);

// Sentences that every format shares. Empty where there is nothing to say.
std::string number_of(const Finding& finding);
// Of sharding whose finding names no op: the first value that is not the whole batch's; else "".
std::string first_apart(const Report& report);
std::string failure_of(const Control& control);  // a sentence for a control that failed
std::string change_of(const TrajectoryRow& row, double change);  // "+0.0125", "-1.20 points"
std::string size_of(const TrajectoryRow& row, double change);    // the same without a sign
std::string interval_of(const TrajectoryRow& row);
std::string margin_of(const TrajectoryRow& row);
std::string outcome_of(const TrajectoryRow& row);
std::string cured(const CureRow& cure);  // "with KEY = VALUE the subject ends within ..."
// What remains with the cure, and the metrics without and with it.
std::string cure_of(const CureRow& cure);
std::string effect_of(const Report& report);  // "harmful: held-out loss is higher ..."
// What the intervals of the table mean, and when an answer is given; "" for one seed.
std::string trials_of(const Report& report);
std::string worst_of(const ProbeRow& row);        // error / bound
std::string ablation_of(const AblationRow& row);  // "undone", "added alone"
std::string effect_of(const AblationRow& row);
std::string interaction_of(const Report& report);
std::string unbounded(int64_t elements);  // ", 12 without a finite bound"
// Several ops made wrong by one fault: the first is shown in full, the others in one row each.
struct Telling {
  bool in_full = true;
  size_t as = 0;  // for a row: number, from 1, of the finding that looks the same; 0: none
};
std::vector<Telling> tellings_of(const std::vector<Finding>& findings, size_t bugs_in_full = 3);
// "T on emulated TPU: 10 of 100 steps (...), 297 ops, ... checked, 0 outside". Not cleaned, like
// all text here that contains names.
std::string probe_line(const EngineProbe& probe);
// Descriptions and commands: the whole diagnosis, then those of the first `most` findings that have
// a command of their own. Not cleaned.
std::vector<std::pair<std::string, std::string>> commands_of(const Report& report, size_t most = 8);
std::string digest8(std::string_view digest);  // the first 8 characters, "-" for none

// One line without control characters, bidirectional overrides or broken UTF-8 (shown as U+FFFD);
// line ends and tabs become spaces. With unicode false: ASCII, known signs spelled out ("x", "->").
std::string clean(std::string_view raw, bool unicode = true);
// A text of several lines with foreign strings in it: what clean() replaces by U+FFFD is replaced,
// but line ends and tabs stay, and with `colored` colour sequences (ESC [ ... m). Clean text comes
// back byte for byte.
std::string printable(std::string_view raw, bool colored = false);
// JSON or TOML with the same value: what `printable` would replace is written as an escape (\u0085),
// which only strings can hold; broken UTF-8 reads as U+FFFD. All else stays byte for byte.
std::string escaped(std::string_view document);
// clean() for several lines; no lines for an empty text.
std::vector<std::string> clean_lines(std::string_view raw, bool unicode = true);

// Width in terminal columns: wide East Asian characters take two, our own colour sequences none.
int display_width(std::string_view text);
// Cuts to `width` columns, including the final `ellipsis`.
std::string clip(std::string_view text, int width, std::string_view ellipsis = "…");
// Breaks at spaces; a word longer than a line is cut. Returns at least one line, which may be
// empty.
std::vector<std::string> wrap(std::string_view text, int width);
// A shell command over several lines that can be pasted back: broken between words with a final
// backslash, inside a word only when the word alone is longer than a line.
std::vector<std::string> command_lines(std::string_view command, int width, int indent);

struct Column {
  std::string title;
  bool right = false;     // aligned to the right
  bool flexible = false;  // wraps when the line is too short
  int drop = 0;           // columns to drop when wrapping is not enough, highest first; 0 stays
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
