// Sections of the documentation that a page mentions ("docs/method/bounds.md#sums"), included in
// the page itself: a reader may have nothing of the project but report.html, there is no web
// address to link to, and the page loads nothing. All of docs/*.md is embedded in the program; a
// page contains, folded, only the sections that it links to.
//
//   doc_named_at("see docs/method/bounds.md, Bias below the bound", 4);
//       // {36, "doc-method-bounds--bias-below-the-bound"}
//   docs_of(page);  // the sections that href="#doc-..." of `page` lead to
#pragma once

#include <string>
#include <string_view>

namespace twinrun::html {

struct DocName {
  size_t size = 0;  // length of the name in the text; 0: no page of docs/ is named here
  std::string id;   // of the named section, or of the whole page where the text names no heading
};
DocName doc_named_at(std::string_view text, size_t at);

std::string docs_of(std::string_view html);  // "" when there are no such links

// Converts headings, paragraphs, lists, tables and code; of links only their words remain. Escaped.
std::string from_markdown(std::string_view markdown);

}  // namespace twinrun::html
