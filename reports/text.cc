// Formats numbers, sentences, tables and curves as text; cleans and wraps strings.
#include "reports/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "reports/utf8.h"

namespace twinrun::text {
namespace {

bool is_hidden(char32_t c) {
  return c < 0x20 || (c >= 0x7F && c < 0xA0) || (c >= 0x200B && c <= 0x200F) ||
         (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
         c == 0xFFFE || c == 0xFFFF || c == 0xAD || (c >= 0xE0000 && c <= 0xE007F);
}

std::string_view spelled_out(char32_t c) {
  struct Sign {
    char32_t c;
    std::string_view ascii;
  };
  static constexpr std::array<Sign, 20> kSigns = {{
      {U'×', "x"},   {U'·', "-"},  {U'–', "-"},     {U'—', "-"},   {U'−', "-"},
      {U'…', "..."}, {U'→', "->"}, {U'←', "<-"},    {U'≤', "<="},  {U'≥', ">="},
      {U'≠', "!="},  {U'±', "+-"}, {U'γ', "gamma"}, {U'ε', "eps"}, {U'σ', "sigma"},
      {U'µ', "u"},   {U'μ', "mu"}, {U'′', "'"},     {U'’', "'"},   {U'°', " deg"},
  }};
  for (const Sign& sign : kSigns) {
    if (sign.c == c) return sign.ascii;
  }
  return "?";
}

int widest_word(std::string_view text) {
  int widest = 0;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    widest = std::max(widest, display_width(word));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
  }
  return widest;
}

// How many bytes of a word fit into `room` columns; if there is a "/" or "." among them, up to the
// last one.
size_t joint_within(std::string_view word, int room) {
  size_t joint = 0, end = 0;
  for (std::string_view rest = word; !rest.empty();) {
    const std::string_view unit = take_unit(rest);
    room -= columns(unit);
    if (room < 0 && end > 0) return joint > 0 ? joint : end;
    end += unit.size();
    if (unit == "/" || unit == ".") joint = end;
  }
  return end;
}

std::string grouped(std::string digits) {
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3) digits.insert(at, ",");
  return digits;
}

}  // namespace

std::string number(double value, int digits) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  if (value == 0) return "0";
  const double size = std::abs(value);
  if (size < 1e-3 || size >= 1e6) return fmt::format("{:.{}e}", value, digits - 1);
  std::string out = fmt::format("{:#.{}g}", value, digits);
  if (out.find('e') != std::string::npos) return fmt::format("{:.0f}", value);
  // No decimals where the digits before the point are already as many as requested.
  const auto whole = static_cast<int>(out.find('.')) - (value < 0 ? 1 : 0);
  if (size >= 1 && whole >= digits) out.resize(out.find('.'));
  return out;
}

std::string signed_number(double value, int digits) {
  return std::isnan(value) || value < 0 ? number(value, digits) : "+" + number(value, digits);
}

std::string power_of_two(double value) {
  if (!(value > 0) || std::isinf(value)) return number(value);
  return fmt::format("2^{:.1f}", std::log2(value));
}

std::string percent(double fraction, int decimals) {
  if (std::isnan(fraction)) return "-";
  return fmt::format("{:.{}f}%", fraction * 100, decimals);
}

std::string share(double fraction) {
  if (fraction < 1 && fraction >= 0.995) return ">99%";
  if (fraction > 0 && fraction < 0.005) return "<1%";
  return percent(fraction, 0);
}

std::string count(int64_t value) {
  const std::string digits = fmt::format("{}", value);
  return value < 0 ? "-" + grouped(digits.substr(1)) : grouped(digits);
}

std::string plural(int64_t value, std::string_view noun) {
  return fmt::format("{} {}{}", count(value), noun, value == 1 ? "" : "s");
}

std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1000);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  if (seconds >= 1e12) return number(seconds) + " s";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole % 3600 / 60);
}

std::string magnitude(double ratio) {
  if (ratio > 1 && ratio < 1.01) return "more than 1.00";
  if (!(ratio >= 1e4) || ratio >= 1e12) return number(ratio);
  if (ratio < 1e6) {
    const auto unit = ratio < 1e5 ? 100 : 1000;
    return count(std::llround(ratio / unit) * unit);
  }
  return ratio < 1e9 ? number(ratio / 1e6) + " million" : number(ratio / 1e9) + " billion";
}

std::string times(double ratio) { return magnitude(ratio) + " times"; }

std::string relative(double fraction) {
  return std::abs(fraction) >= 1e-3 ? number(100 * fraction) + "%"
                                    : number(fraction) + " of its size";
}

std::string interval(double low, double high) {
  return fmt::format("[{}, {}]", signed_number(low), signed_number(high));
}

std::string against_bound(double value, double bound) {
  const std::string both = fmt::format("{}; allowed {}", number(value), number(bound));
  const double ratio = value / bound;
  return ratio > 1 && std::isfinite(ratio) ? fmt::format("{} ({})", both, times(ratio)) : both;
}

std::string digest8(std::string_view digest) {
  return digest.empty() ? "-" : clip(clean(digest), 8, "");
}

std::string clean(std::string_view raw, bool unicode) {
  std::string out;
  out.reserve(raw.size());
  while (!raw.empty()) {
    char32_t c = take(raw);
    if (c == '\n' || c == '\t' || c == '\r') c = ' ';
    if (is_hidden(c)) c = kReplacement;
    if (c < 0x80 || unicode) {
      append(out, c);
    } else {
      out += spelled_out(c);
    }
  }
  return out;
}

std::string printable(std::string_view raw, bool colored) {
  std::string out;
  out.reserve(raw.size());
  while (!raw.empty()) {
    if (colored && raw.starts_with("\x1b[")) {
      const size_t end = raw.find_first_not_of("0123456789;", 2);
      if (end != raw.npos && raw[end] == 'm') {
        out += raw.substr(0, end + 1);
        raw.remove_prefix(end + 1);
        continue;
      }
    }
    if (raw.starts_with("\r\n")) raw.remove_prefix(1);
    const char32_t c = take(raw);
    append(out, c != '\n' && c != '\t' && is_hidden(c) ? kReplacement : c);
  }
  return out;
}

std::string escaped(std::string_view document) {
  const bool json = document.starts_with('{') || document.starts_with('[');
  std::string out;
  out.reserve(document.size());
  while (!document.empty()) {
    const char32_t c = take(document);
    const auto value = static_cast<uint32_t>(c);
    const bool ends_line = c == '\r' && document.starts_with('\n');
    if (c == '\n' || c == '\t' || ends_line || !is_hidden(c)) {
      append(out, c);
    } else if (c < 0x10000) {
      out += fmt::format("\\u{:04X}", value);
    } else if (json) {
      const uint32_t above = value - 0x10000;
      out += fmt::format("\\u{:04X}\\u{:04X}", 0xD800 | above >> 10, 0xDC00 | (above & 0x3FF));
    } else {
      out += fmt::format("\\U{:08X}", value);
    }
  }
  return out;
}

std::vector<std::string> clean_lines(std::string_view raw, bool unicode) {
  std::vector<std::string> out;
  while (!raw.empty()) {
    const size_t end = std::min(raw.find('\n'), raw.size());
    std::string_view line = raw.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    out.push_back(clean(line, unicode));
    raw.remove_prefix(std::min(end + 1, raw.size()));
  }
  return out;
}

int display_width(std::string_view text) {
  int width = 0;
  while (!text.empty()) width += columns(take_unit(text));
  return width;
}

std::string clip(std::string_view text, int width, std::string_view ellipsis) {
  if (display_width(text) <= width) return std::string(text);
  const int room = std::max(0, width - display_width(ellipsis));
  std::string out;
  for (int used = 0; !text.empty();) {
    const std::string_view unit = take_unit(text);
    used += columns(unit);
    if (used > room) break;
    out += unit;
  }
  return out + std::string(ellipsis);
}

std::vector<std::string> wrap(std::string_view text, int width) {
  std::vector<std::string> out;
  std::string line;
  int used = 0;
  const auto flush = [&] {
    out.push_back(std::move(line));
    line.clear();
    used = 0;
  };
  while (!text.empty()) {
    const size_t start = text.find_first_not_of(' ');
    if (start == std::string_view::npos) break;
    text.remove_prefix(start);
    std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size());
    const int size = display_width(word);
    if (used > 0 && used + 1 + size > width) flush();
    if (used > 0) {
      line += ' ';
      ++used;
    }
    while (!word.empty()) {
      // A word too long for one line is cut after the last "/" or "." that fits, else where the
      // line ends.
      const std::string_view part =
          size > width ? word.substr(0, joint_within(word, width - used)) : word;
      word.remove_prefix(part.size());
      for (std::string_view rest = part; !rest.empty();) {
        const std::string_view unit = take_unit(rest);
        const int step = columns(unit);
        if (used > 0 && used + step > width) flush();
        line += unit;
        used += step;
      }
      if (!word.empty()) flush();
    }
  }
  if (used > 0 || out.empty()) flush();
  return out;
}

std::vector<std::string> command_lines(std::string_view command, int width, int indent) {
  // Split into words with their quotes; a space inside quotes does not end a word.
  std::vector<std::string> words;
  std::string word;
  char quote = 0;
  for (size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == ' ' && quote == 0) {
      if (!word.empty()) words.push_back(std::move(word));
      word.clear();
      continue;
    }
    if (quote == 0 && (c == '\'' || c == '"')) {
      quote = c;
    } else if (c == quote) {
      quote = 0;
    } else if (c == '\\' && quote != '\'' && i + 1 < command.size()) {
      word += c;
      word += command[++i];
      continue;
    }
    word += c;
  }
  if (!word.empty()) words.push_back(std::move(word));

  std::vector<std::string> out;
  const std::string first(indent, ' ');
  const std::string next(indent + 4, ' ');
  std::string line = first;
  bool fresh = true;
  for (size_t i = 0; i < words.size(); ++i) {
    const int size = display_width(words[i]);
    const int tail = i + 1 < words.size() ? 2 : 0;  // " \" follows all but the last
    if (!fresh && display_width(line) + 1 + size + tail > width) {
      out.push_back(line + " \\");
      line = next;
      fresh = true;
    }
    if (!fresh) line += ' ';
    fresh = false;
    // A word longer than a line continues at the margin, so that the shell joins its pieces.
    bool single = false;
    int used = display_width(line);
    int left = size + tail;
    for (std::string_view rest = words[i]; !rest.empty();) {
      std::string piece(take_unit(rest));
      if (piece == "\\" && !single && !rest.empty()) piece += take_unit(rest);
      const int step = display_width(piece);
      if (used + left > width && used + step + 2 > width) {
        out.push_back(line + (single ? "'\\" : "\\"));
        line = single ? "'" : "";
        used = static_cast<int>(line.size());
      }
      if (piece == "'") single = !single;
      line += piece;
      used += step;
      left -= step;
    }
  }
  if (!fresh) out.push_back(line);
  return out;
}

void Table::add(std::vector<std::string> row) {
  row.resize(columns_.size());
  rows_.push_back(std::move(row));
}

std::vector<std::string> Table::lines(int width, int indent) const {
  constexpr int kGap = 2;
  constexpr int kMin = 4;
  constexpr int kLongWord = 24;                  // longer words may be cut
  std::vector<int> content(columns_.size(), 0);  // the widest cell
  std::vector<int> least(columns_.size(), 0);    // the widest word, title included
  std::vector<int> natural(columns_.size(), 0);
  std::vector<size_t> shown;
  for (size_t i = 0; i < columns_.size(); ++i) {
    least[i] = widest_word(columns_[i].title);
    for (const auto& row : rows_) {
      content[i] = std::max(content[i], display_width(row[i]));
      if (columns_[i].flexible) least[i] = std::max(least[i], widest_word(row[i]));
    }
    if (content[i] == 0) continue;
    if (!columns_[i].flexible) least[i] = std::max(least[i], content[i]);
    least[i] = std::min(least[i], columns_[i].flexible ? kLongWord : width);
    natural[i] = std::max(content[i], display_width(columns_[i].title));
    shown.push_back(i);
  }
  std::vector<int> size;
  const auto excess = [&] {
    int total = indent + kGap * (static_cast<int>(shown.size()) - 1);
    for (size_t i : shown) total += size[i];
    return total - width;
  };
  // Narrows the widest column that is above its floor, until the line fits.
  const auto squeeze = [&](const auto& floor_of) {
    while (excess() > 0) {
      size_t best = columns_.size();
      for (size_t i : shown) {
        if (size[i] > floor_of(i) && (best == columns_.size() || size[i] > size[best])) best = i;
      }
      if (best == columns_.size()) return;
      // Large steps while the line is far too wide, single columns at the end.
      const int step = std::max(1, std::min(excess(), size[best] - floor_of(best)) / 4);
      size[best] -= step;
    }
  };
  for (;;) {
    size = natural;
    squeeze([&](size_t i) { return std::max(least[i], content[i]); });  // may wrap titles
    squeeze([&](size_t i) { return least[i]; });
    if (excess() <= 0) break;
    const auto last =
        std::ranges::max_element(shown, {}, [&](size_t i) { return columns_[i].drop; });
    if (last == shown.end() || columns_[*last].drop == 0) break;
    shown.erase(last);
  }
  squeeze([](size_t) { return kMin; });
  while (excess() > 0 && shown.size() > 1) shown.pop_back();

  std::vector<std::string> out;
  const auto put = [&](const auto& cell_of) {
    std::vector<std::vector<std::string>> cells;
    size_t height = 1;
    for (size_t i : shown) {
      cells.push_back(wrap(cell_of(i), size[i]));
      height = std::max(height, cells.back().size());
    }
    for (size_t y = 0; y < height; ++y) {
      std::string line(indent, ' ');
      for (size_t x = 0; x < shown.size(); ++x) {
        const std::string& cell = y < cells[x].size() ? cells[x][y] : std::string();
        const std::string pad(std::max(0, size[shown[x]] - display_width(cell)), ' ');
        if (x > 0) line += std::string(kGap, ' ');
        line += columns_[shown[x]].right ? pad + cell : cell + pad;
      }
      line.erase(line.find_last_not_of(' ') + 1);
      out.push_back(std::move(line));
    }
  };
  put([&](size_t i) -> const std::string& { return columns_[i].title; });
  for (const auto& row : rows_) put([&](size_t i) -> const std::string& { return row[i]; });
  return out;
}

std::string sparkline(std::span<const float> values, int width, double low, double high,
                      bool unicode) {
  static constexpr std::array<std::string_view, 8> kBlocks = {"▁", "▂", "▃", "▄",
                                                              "▅", "▆", "▇", "█"};
  static constexpr std::array<std::string_view, 8> kAscii = {"_", ".", "-", "~",
                                                             "=", "+", "*", "#"};
  const auto& marks = unicode ? kBlocks : kAscii;
  const size_t points = std::min(values.size(), static_cast<size_t>(std::max(width, 0)));
  std::string out;
  for (size_t i = 0; i < points; ++i) {
    const size_t begin = i * values.size() / points;
    const size_t end = (i + 1) * values.size() / points;
    double sum = 0;
    for (size_t k = begin; k < end; ++k) sum += values[k];
    const double value = sum / static_cast<double>(end - begin);
    if (!std::isfinite(value)) {
      out += '!';
      continue;
    }
    const double part = high > low ? (value - low) / (high - low) : 0.0;
    out += marks[static_cast<size_t>(std::lround(std::clamp(part, 0.0, 1.0) * 7))];
  }
  return out;
}

}  // namespace twinrun::text
