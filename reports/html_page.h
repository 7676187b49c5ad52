// The frame of every page: one file that loads nothing (its policy forbids that), in the reader's light or dark.
//
//   html::page({.title = "profile", .styles = {"page.css"}, .body = "<main>...</main>\n", .scripts = {...}});
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace twinrun::html {

struct Page {
  std::string title;                      // markup
  std::vector<std::string_view> styles;   // names of page_files.h
  std::string body;                       // markup
  std::vector<std::string> scripts = {};  // texts
  std::string_view kind = {};             // class of <body>, for styles
};
std::string page(const Page& page);

// The text of an embedded file; "" for an unknown name.
std::string_view page_file(std::string_view name);

// Sections with a list of contents that links to them.
class Sections {
 public:
  void add(std::string_view id, std::string_view title, const std::string& html);  // none for ""
  std::string contents() const;                                                    // <nav>
  const std::string& body() const { return body_; }

 private:
  std::string contents_, body_;
};

}  // namespace twinrun::html
