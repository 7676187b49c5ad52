// The frame of report.html: one file whose content security policy forbids loading anything, in the
// reader's light or dark colour scheme.
//
//   html::page({.title = "report", .styles = {"page.css"},
//               .body = "<main>...</main>\n", .scripts = {...}});
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun::html {

struct Page {
  std::string title;                      // markup
  std::vector<std::string_view> styles;   // names in page_files.h
  std::string body;                       // markup
  std::vector<std::string> scripts = {};  // source text of each
};
std::string page(const Page& page);

// The text of an embedded file; "" for an unknown name.
std::string_view page_file(std::string_view name);

// Collects sections and a table of contents that links to them.
class Sections {
 public:
  // An empty `html` adds nothing.
  void add(std::string_view id, std::string_view title, const std::string& html);
  std::string contents() const;  // <nav>
  const std::string& body() const { return body_; }

 private:
  std::string contents_, body_;
};

}  // namespace twinrun::html
