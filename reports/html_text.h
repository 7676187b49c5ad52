// HTML from untrusted strings: names of ops, messages of engines, files of scenarios. Every
// function takes raw text and returns markup; only parameters called `html` are markup already.
// Used by html*.cc and svg*.cc.
//
//   html::text("a < b")                       // "a &lt; b", one line, nothing invisible
//   html::Table t("Runs", {{"run"}, {"loss", true}});
//   t.add({html::code("R"), html::text("0.23")});  t.str();
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reports/text.h"

namespace twinrun::html {

// Escapes text that text::clean() has made, for HTML and XML.
std::string escaped(std::string_view clean);
// Escaped for text and for attributes in quotes; one line, cut at `most` columns.
std::string text(std::string_view raw, int most = 1000);
std::string code(std::string_view raw, int most = 200);  // "" for ""
// A sentence as markup: `code` in backquotes becomes code, names of runs become abbreviations that
// show their meaning, and pages of the documentation ("docs/method/bounds.md") become links to the
// sections that html_docs.h includes in the page.
std::string prose(std::string_view raw, int most = 1000);
// Several lines as they are, in a box that scrolls; at most `most` bytes.
std::string block(std::string_view raw, size_t most = 40000);
std::string paragraph(std::string_view raw);  // as prose; "" for ""
// The first `most` items, then how many more there are in report.json; "" for an empty list.
std::string bullets(const std::vector<std::string>& items, size_t most = 64);
// A box that is closed until a reader opens it.
std::string folded(std::string_view summary, const std::string& html);
std::string more(size_t items);  // "12 more in report.json"

using Column = text::Column;  // the page needs its title and alignment

// A table that scrolls horizontally where the page is too narrow. Columns without any content are
// left out; rows beyond the limit are only counted.
class Table {
 public:
  Table(std::string caption, std::vector<Column> columns, size_t most = 100)
      : caption_(std::move(caption)), columns_(std::move(columns)), most_(most) {}
  void add(std::vector<std::string> html);  // one cell for each column
  bool empty() const { return rows_.empty(); }
  std::string str() const;  // "" without rows

 private:
  std::string caption_;
  std::vector<Column> columns_;
  size_t most_, beyond_ = 0;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace twinrun::html
