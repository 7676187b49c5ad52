// The documentation that a page's sentences name ("docs/bounds.md#sums"), on the page itself: a reader may have nothing of the project
// but report.html, there is no address on the web to link to, and the page loads nothing. All of docs/*.md is embedded in the
// program; a page carries the sections that it links to, folded, and no other.
//
//   doc_named_at("see docs/bounds.md, Bias below the bound", 4);   // {14, "doc-bounds--bias-below-the-bound"}
//   docs_of(page);                                                 // the sections that href="#doc-..." of `page` lead to
#pragma once

#include <string>
#include <string_view>

namespace twinrun::html {

struct DocName {
  size_t size = 0;  // of the name in the text; 0: no page of ours is named here
  std::string id;   // of its section; of the whole page, where the text names no heading of it
};
DocName doc_named_at(std::string_view text, size_t at);

std::string docs_of(std::string_view html);  // "" where it links to none

// Headings, paragraphs, lists, tables, code; links become their words. Escaped.
std::string from_markdown(std::string_view markdown);

}  // namespace twinrun::html
