// Escapes text for HTML; makes paragraphs, lists, blocks and tables.
#include "reports/html_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/html_docs.h"
#include "reports/run_names.h"

namespace twinrun::html {
std::string escaped(std::string_view clean) {
  std::string out;
  out.reserve(clean.size());
  for (const char c : clean) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string text(std::string_view raw, int most) {
  // Clean only as much as can be shown, since the text may be megabytes: a code point has at most
  // four bytes.
  const std::string_view head = raw.substr(0, 4 * static_cast<size_t>(most) + 4);
  return escaped(text::clip(text::clean(head), most));
}

std::string prose(std::string_view raw, int most) {
  const std::string clean =
      text::clip(text::clean(raw.substr(0, 4 * static_cast<size_t>(most) + 4)), most);
  const std::string_view all = clean;
  std::string out;
  size_t plain = 0;  // everything before this position has been written
  const auto put = [&](size_t at, size_t size, const std::string& html) {
    out += escaped(all.substr(plain, at - plain)) + html;
    plain = at + size;
  };
  for (size_t at = 0; at < all.size(); at = std::max(at + 1, plain)) {
    if (all[at] == '`') {
      const size_t end = all.find('`', at + 1);
      if (end != std::string_view::npos && end > at + 1)
        put(at, end + 1 - at,
            fmt::format("<code>{}</code>", escaped(all.substr(at + 1, end - at - 1))));
    } else if (const size_t name = text::run_named_at(all, at); name > 0) {
      const std::string_view run = all.substr(at, name);
      put(at, name,
          fmt::format("<abbr title=\"{}\">{}</abbr>", escaped(text::words_of_run(run)),
                      escaped(run)));
    } else if (const DocName doc = doc_named_at(all, at); doc.size > 0) {
      put(at, doc.size,
          fmt::format("<a href=\"#{}\">{}</a>", doc.id, escaped(all.substr(at, doc.size))));
    }
  }
  return out + escaped(all.substr(plain));
}

std::string code(std::string_view raw, int most) {
  const std::string inner = text(raw, most);
  return inner.empty() ? "" : fmt::format("<code>{}</code>", inner);
}

std::string block(std::string_view raw, size_t most) {
  std::string out;
  for (const std::string& line : text::clean_lines(raw.substr(0, most)))
    out += escaped(line) + "\n";
  if (raw.size() > most) out += "… the rest is in report.json\n";
  return fmt::format("<pre tabindex=\"0\"><code>{}</code></pre>\n", out);
}

std::string paragraph(std::string_view raw) {
  return raw.empty() ? "" : fmt::format("<p>{}</p>\n", prose(raw));
}

std::string more(size_t items) {
  return fmt::format("<p class=\"more\">{} more in report.json</p>\n", items);
}

std::string bullets(const std::vector<std::string>& items, size_t most) {
  if (items.empty()) return "";
  std::string out = "<ul>\n";
  for (size_t i = 0; i < std::min(items.size(), most); ++i)
    out += fmt::format("<li>{}</li>\n", prose(items[i]));
  out += "</ul>\n";
  return items.size() > most ? out + more(items.size() - most) : out;
}

std::string folded(std::string_view summary, const std::string& html) {
  return fmt::format("<details><summary>{}</summary>\n{}</details>\n", text(summary), html);
}

void Table::add(std::vector<std::string> html) {
  html.resize(columns_.size());
  if (rows_.size() < most_) {
    rows_.push_back(std::move(html));
  } else {
    ++beyond_;
  }
}

std::string Table::str() const {
  if (rows_.empty()) return "";
  std::vector<size_t> shown;
  for (size_t i = 0; i < columns_.size(); ++i) {
    if (std::ranges::any_of(rows_, [&](const auto& row) { return !row[i].empty(); }))
      shown.push_back(i);
  }
  std::string out = fmt::format(
      "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{0}\">\n"
      "<table><caption>{0}</caption>\n<thead><tr>",
      text(caption_));
  const auto kind = [&](size_t i) { return columns_[i].right ? " class=\"n\"" : ""; };
  for (size_t i : shown)
    out += fmt::format("<th scope=\"col\"{}>{}</th>", kind(i), text(columns_[i].title));
  out += "</tr></thead>\n<tbody>\n";
  for (const auto& row : rows_) {
    out += "<tr>";
    for (size_t i : shown) out += fmt::format("<td{}>{}</td>", kind(i), row[i]);
    out += "</tr>\n";
  }
  out += "</tbody></table></div>\n";
  return beyond_ > 0 ? out + more(beyond_) : out;
}

}  // namespace twinrun::html
