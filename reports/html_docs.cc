// Finds pages of docs/ that a report mentions, and converts their Markdown to HTML.
#include "reports/html_docs.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "reports/html_page.h"
#include "reports/html_text.h"
#include "reports/page_files.h"

namespace twinrun::html {
namespace {

constexpr std::string_view kFolder = "docs/", kEnd = ".md", kId = "doc-", kHref = "href=\"#doc-";
constexpr int kLong = 1 << 20;  // a limit that no page of docs/ reaches: they are shown whole

bool in_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-';
}

std::string_view name_at(std::string_view text) {
  size_t end = 0;
  while (end < text.size() && in_name(text[end])) ++end;
  return text.substr(0, end);
}

// GitHub's anchor for a heading.
std::string slug(std::string_view heading) {
  std::string out;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ') out += '-';
    if (in_name(c) || c == '_' || byte >= 0x80)
      out += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return out;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    out.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

size_t level_of(std::string_view line) {
  const size_t level = std::min(line.find_first_not_of('#'), line.size());
  return level > 0 && level < line.size() && line[level] == ' ' ? level : 0;
}

struct Section {
  std::string title, slug;
  size_t level = 0;
  std::string_view text;  // including its heading and the sections below it
};

// Every heading of a page. The first one stands for the whole page.
std::vector<Section> sections_of(std::string_view page) {
  std::vector<Section> out;
  std::vector<size_t> begins;
  bool code = false;
  for (const std::string_view line : lines_of(page)) {
    if (line.starts_with("```")) code = !code;
    const size_t level = code ? 0 : level_of(line);
    if (level == 0) continue;
    const std::string_view title = line.substr(level + 1);
    out.push_back({std::string(title), slug(title), level, {}});
    begins.push_back(static_cast<size_t>(line.data() - page.data()));
  }
  for (size_t i = 0; i < out.size(); ++i) {
    size_t next = i + 1;
    while (next < out.size() && out[next].level > out[i].level) ++next;
    const size_t end = next < out.size() ? begins[next] : page.size();
    out[i].text = page.substr(begins[i], end - begins[i]);
  }
  return out;
}

// The name of a page in ids: its path without "docs/" and ".md", "method-bounds" of
// docs/method/bounds.md.
std::string name_of(const PageFile& page) {
  std::string name(page.name.substr(kFolder.size()));
  name.resize(name.size() - kEnd.size());
  std::ranges::replace(name, '/', '-');
  return name;
}

// The embedded page of docs/ that `wanted` accepts; null if there is none.
template <typename Wanted>
const PageFile* doc_page(Wanted wanted) {
  const auto found = std::ranges::find_if(page_files(), [&](const PageFile& page) {
    return page.name.starts_with(kFolder) && wanted(page);
  });
  return found == page_files().end() ? nullptr : &*found;
}

const Section* section_named(const std::vector<Section>& sections, std::string_view slug) {
  const auto found = std::ranges::find(sections, slug, &Section::slug);
  return found == sections.end() ? nullptr : &*found;
}

// Inline Markdown as HTML: `code`, **bold**, *italic* and [words](link), of which the words remain.
std::string inline_of(std::string_view text) {
  std::string out;
  const auto until = [&](size_t at, std::string_view end) {
    const size_t found = text.find(end, at);
    return found == at ? std::string_view::npos : found;
  };
  while (!text.empty()) {
    if (text.starts_with("\\") && text.size() > 1) {
      out += html::text(text.substr(1, 1));
      text.remove_prefix(2);
      continue;
    }
    if (text.starts_with("`")) {
      if (const size_t end = until(1, "`"); end != std::string_view::npos) {
        out += code(text.substr(1, end - 1), kLong);
        text.remove_prefix(end + 1);
        continue;
      }
    }
    if (text.starts_with("**")) {
      if (const size_t end = until(2, "**"); end != std::string_view::npos) {
        out += "<b>" + inline_of(text.substr(2, end - 2)) + "</b>";
        text.remove_prefix(end + 2);
        continue;
      }
    }
    if (text.starts_with("*") && text.size() > 1 && text[1] != ' ') {
      if (const size_t end = until(1, "*"); end != std::string_view::npos) {
        out += "<i>" + inline_of(text.substr(1, end - 1)) + "</i>";
        text.remove_prefix(end + 1);
        continue;
      }
    }
    if (text.starts_with("[")) {
      const size_t middle = until(1, "](");
      const size_t end = middle == std::string_view::npos ? middle : text.find(')', middle);
      if (end != std::string_view::npos) {
        out += inline_of(text.substr(1, middle - 1));
        text.remove_prefix(end + 1);
        continue;
      }
    }
    const size_t plain = std::max<size_t>(1, std::min(text.find_first_of("\\`*["), text.size()));
    out += html::text(text.substr(0, plain), kLong);
    text.remove_prefix(plain);
  }
  return out;
}

std::string row_of(std::string_view line, std::string_view cell) {
  std::string out = "<tr>";
  line.remove_prefix(1);
  while (line.ends_with(' ')) line.remove_suffix(1);
  if (line.ends_with('|')) line.remove_suffix(1);
  while (true) {
    size_t end = line.find('|');
    while (end != std::string_view::npos && end > 0 && line[end - 1] == '\\')
      end = line.find('|', end + 1);
    std::string_view one = line.substr(0, end);
    while (one.starts_with(' ')) one.remove_prefix(1);
    while (one.ends_with(' ')) one.remove_suffix(1);
    out += fmt::format("<{0}>{1}</{0}>", cell, inline_of(one));
    if (end == std::string_view::npos) break;
    line.remove_prefix(end + 1);
  }
  return out + "</tr>\n";
}

bool is_item(std::string_view line) { return line.starts_with("- ") || line.starts_with("* "); }
size_t number_of_item(std::string_view line) {
  const size_t digits = std::min(line.find_first_not_of("0123456789"), line.size());
  return digits > 0 && line.substr(digits).starts_with(". ") ? digits + 2 : 0;
}

}  // namespace

DocName doc_named_at(std::string_view text, size_t at) {
  if (at > 0 && (in_name(text[at - 1]) || text[at - 1] == '/' || text[at - 1] == '.')) return {};
  std::string_view rest = text.substr(at);
  if (!rest.starts_with(kFolder)) return {};
  const PageFile* page = doc_page([&](const PageFile& p) { return rest.starts_with(p.name); });
  if (page == nullptr) return {};
  rest.remove_prefix(page->name.size());
  DocName out{page->name.size(), std::string(kId) + name_of(*page)};
  const std::vector<Section> sections = sections_of(page->text);
  if (rest.starts_with('#')) {
    const std::string_view anchor = name_at(rest.substr(1));
    out.size += 1 + anchor.size();
    if (section_named(sections, anchor) != nullptr) out.id += fmt::format("--{}", anchor);
  } else if (rest.starts_with(", ")) {
    // A heading after a comma, or the beginning of one: "docs/method/bounds.md, Bias below the
    // bound)".
    const size_t end = std::min(rest.find_first_of(").;:", 2), rest.size());
    const std::string words = slug(rest.substr(2, end - 2));
    const auto found = std::ranges::find_if(
        sections, [&](const Section& s) { return !words.empty() && s.slug.starts_with(words); });
    if (found != sections.end() && found->level > 1) {
      out.id += "--" + found->slug;
      out.size += end;
    }
  }
  return out;
}

std::string docs_of(std::string_view html) {
  std::vector<std::string> ids;
  for (size_t at = html.find(kHref); at != std::string_view::npos; at = html.find(kHref, at + 1)) {
    const size_t begin = at + kHref.size();
    std::string id(html.substr(begin, html.find('"', begin) - begin));
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(std::move(id));
  }
  std::string out;
  for (const std::string& id : ids) {
    const std::string name = id.substr(0, id.find("--"));
    const PageFile* page = doc_page([&](const PageFile& p) { return name_of(p) == name; });
    if (page == nullptr) continue;
    std::string_view text = page->text;
    std::string title(page->name);
    const std::vector<Section> sections = sections_of(text);
    const Section* section =
        name.size() == id.size()
            ? nullptr
            : section_named(sections, std::string_view(id).substr(name.size() + 2));
    if (section != nullptr) text = section->text;
    if (section == nullptr && !sections.empty()) section = &sections.front();
    if (section != nullptr) title += ": " + section->title;
    out += fmt::format("<details class=\"doc\" id=\"{}{}\"><summary>{}</summary>\n{}</details>\n",
                       kId, id, html::text(title), from_markdown(text));
  }
  return out;
}

std::string from_markdown(std::string_view markdown) {
  // words: a paragraph or item not yet written; list: the element name of the open list.
  std::string out, words, list;
  bool item = false;
  const auto flush = [&] {
    if (!words.empty()) out += fmt::format("<{0}>{1}</{0}>\n", item ? "li" : "p", inline_of(words));
    words.clear();
    item = false;
  };
  const auto end_list = [&] {
    flush();
    if (!list.empty()) out += fmt::format("</{}>\n", list);
    list.clear();
  };
  const std::vector<std::string_view> lines = lines_of(markdown);
  for (size_t i = 0; i < lines.size(); ++i) {
    std::string_view line = lines[i];
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    const std::string_view bare = line.substr(indent);
    const size_t number = number_of_item(bare);
    if (line.starts_with("```") ||
        (indent >= 4 && words.empty() && list.empty() && !bare.empty())) {
      end_list();
      const bool fence = line.starts_with("```");
      std::string text;
      for (i += fence ? 1 : 0; i < lines.size(); ++i) {
        if (fence ? lines[i].starts_with("```") : !lines[i].starts_with("    ")) break;
        text += std::string(fence ? lines[i] : lines[i].substr(4)) + "\n";
      }
      if (!fence) --i;
      out += block(text, text.size());
    } else if (const size_t level = level_of(line); level > 0) {
      end_list();
      out += fmt::format("<h3>{}</h3>\n", inline_of(line.substr(level + 1)));
    } else if (line.starts_with("|")) {
      end_list();
      out += "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table\"><table>\n";
      for (size_t row = 0; i < lines.size() && lines[i].starts_with("|"); ++i, ++row) {
        if (row != 1) out += row_of(lines[i], row == 0 ? "th" : "td");
      }
      --i;
      out += "</table></div>\n";
    } else if (is_item(bare) || number > 0) {
      flush();
      const std::string kind = number > 0 ? "ol" : "ul";
      if (list != kind) {
        end_list();
        out += fmt::format("<{}>\n", kind);
        list = kind;
      }
      item = true;
      words = std::string(bare.substr(number > 0 ? number : 2));
    } else if (bare.empty()) {
      flush();
    } else {
      if (words.empty() && indent == 0) end_list();
      if (words.empty()) item = !list.empty();
      words += (words.empty() ? "" : " ") + std::string(bare);
    }
  }
  end_list();
  return out;
}

}  // namespace twinrun::html
