// Escapes text for GitHub-flavoured Markdown; makes code spans, blocks, tables and lists.
#include "reports/markdown_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/utf8.h"

namespace twinrun::text {
namespace {

bool is_word(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

// Cuts between code points, with "…" for the rest.
std::string cut(std::string_view text, size_t bytes) {
  if (text.size() <= bytes) return std::string(text);
  std::string out;
  while (!text.empty()) {
    const std::string_view unit = take_unit(text);
    if (out.size() + unit.size() + 3 > bytes) break;
    out += unit;
  }
  return out + "…";
}

// Cleans only as much as can be shown, since the text may be megabytes; clean() at most triples the
// size of broken text.
std::string clean_head(std::string_view raw, size_t bytes) {
  return clean(raw.substr(0, bytes * 4 + 16));
}

size_t longest_run(std::string_view text, char c) {
  size_t best = 0, run = 0;
  for (char x : text) {
    run = x == c ? run + 1 : 0;
    best = std::max(best, run);
  }
  return best;
}

std::string span_of(std::string_view raw, size_t bytes, bool in_table) {
  std::string text = cut(clean_head(raw, bytes), bytes);
  if (text.find_first_not_of(' ') == std::string::npos) return "";
  const std::string fence(longest_run(text, '`') + 1, '`');
  if (text.front() == '`' || text.back() == '`') text = " " + text + " ";
  std::string out = fence;
  for (char c : text) {
    if (in_table && c == '|') out += '\\';
    out += c;
  }
  return out + fence;
}

}  // namespace

size_t Pieces::rows(size_t usual) const { return std::max<size_t>(1, usual >> level_); }
size_t Pieces::bytes(size_t usual) const { return std::max<size_t>(24, usual >> level_); }

std::string Pieces::prose(std::string_view raw, size_t usual) const {
  const size_t limit = bytes(usual);
  const std::string text = clean_head(raw, limit);
  std::string out;
  std::string_view rest = text;
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  char before = ' ';
  // "1." or "-" at the start of a list item would begin a nested list.
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  const bool ordered = digits > 0 && digits < rest.size() &&
                       (rest[digits] == '.' || rest[digits] == ')') &&
                       (digits + 1 == rest.size() || rest[digits + 1] == ' ');
  for (size_t at = 0; !rest.empty(); ++at) {
    const std::string_view unit = take_unit(rest);
    const char c = unit.size() == 1 ? unit[0] : 'a';
    const char after = rest.empty() ? ' ' : rest.front();
    std::string safe(unit);
    if (c == '<') safe = "&lt;";
    if (c == '>') safe = "&gt;";
    if (c == '&') safe = "&amp;";
    const bool inner = is_word(before) && is_word(after);
    const bool markup = std::string_view("`*[]|\\~$").find(c) != std::string_view::npos ||
                        (c == '_' && !inner) || (at == 0 && (c == '#' || c == '+' || c == '-')) ||
                        (ordered && at == digits);
    // "#12" and "@name" would link to an issue or notify a user.
    const bool link = (c == '#' || c == '@') && !is_word(before) && is_word(after);
    if (link) {
      safe = unit;
      safe += "&#8203;";
    }
    if (markup && !link && unit.size() == 1) safe.insert(0, 1, '\\');
    if (out.size() + safe.size() + 3 > limit &&
        !(rest.empty() && out.size() + safe.size() <= limit)) {
      return out + "…";
    }
    out += safe;
    before = c;
  }
  return out;
}

std::string Pieces::code(std::string_view raw, size_t usual) const {
  return span_of(raw, bytes(usual), false);
}

std::string Pieces::cell_code(std::string_view raw, size_t usual) const {
  return span_of(raw, bytes(usual), true);
}

std::string Pieces::block(std::string_view language, std::string_view raw, size_t usual) const {
  const size_t limit = bytes(usual);
  const std::vector<std::string> lines = clean_lines(raw.substr(0, limit * 4 + 16));
  std::string body;
  bool whole = raw.size() <= limit * 4 + 16;
  for (const std::string& line : lines) {
    const size_t room = limit > body.size() ? limit - body.size() : 0;
    if (line.size() + 1 > room) {
      if (room > 8) body += cut(line, room) + "\n";
      whole = false;
      break;
    }
    body += line + "\n";
  }
  const std::string fence(std::max<size_t>(3, longest_run(body, '`') + 1), '`');
  std::string out = fmt::format("{}{}\n{}{}\n", fence, language, body, fence);
  if (!whole) out += "\n*Cut here; the rest is in report.json.*\n";
  return out;
}

std::string Pieces::table(const std::vector<Column>& columns,
                          const std::vector<std::vector<std::string>>& rows, size_t left_out) {
  std::vector<size_t> shown;
  for (size_t x = 0; x < columns.size(); ++x) {
    if (std::ranges::any_of(rows, [&](const auto& row) { return !row[x].empty(); }))
      shown.push_back(x);
  }
  std::string out = "|", rule = "|";
  for (const size_t x : shown) {
    out += fmt::format(" {} |", columns[x].title);
    rule += columns[x].right ? "---:|" : "---|";
  }
  out += "\n" + rule + "\n";
  for (const auto& row : rows) {
    out += '|';
    for (const size_t x : shown) out += row[x].empty() ? " |" : fmt::format(" {} |", row[x]);
    out += '\n';
  }
  if (left_out > 0)
    out +=
        fmt::format("\n*{} in report.json.*\n", plural(static_cast<int64_t>(left_out), "more row"));
  return out;
}

std::string Pieces::bullets(const std::vector<std::string>& items, size_t usual_rows) const {
  std::string out;
  const size_t shown = std::min(items.size(), rows(usual_rows));
  for (size_t i = 0; i < shown; ++i) out += fmt::format("- {}\n", prose(items[i], 600));
  if (shown < items.size()) {
    out += fmt::format("- *{} more in report.json.*\n", items.size() - shown);
  }
  return out;
}

std::string details(std::string_view summary, std::string_view body) {
  return fmt::format("<details><summary>{}</summary>\n\n{}\n</details>\n", summary, body);
}

}  // namespace twinrun::text
