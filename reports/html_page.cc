// Makes the frame of report.html: head, styles, body and scripts.
#include "reports/html_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/page_files.h"

namespace twinrun::html {

std::string_view page_file(std::string_view name) {
  const auto found = std::ranges::find(page_files(), name, &PageFile::name);
  return found == page_files().end() ? std::string_view() : found->text;
}

std::string page(const Page& p) {
  std::string styles, scripts;
  for (const std::string_view name : p.styles) {
    styles += page_file(name);
    if (!styles.ends_with('\n')) styles += '\n';
  }
  for (const std::string& script : p.scripts) scripts += "<script>\n" + script + "</script>\n";
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      "<meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n"
      "<style>\n{}</style>\n</head>\n<body>\n{}{}</body>\n</html>\n",
      p.title, styles, p.body, scripts);
}

void Sections::add(std::string_view id, std::string_view title, const std::string& html) {
  if (html.empty()) return;
  contents_ += fmt::format("<li><a href=\"#{}\">{}</a></li>\n", id, title);
  body_ += fmt::format(
      "<section id=\"{0}\" aria-labelledby=\"{0}-h\">\n<h2 "
      "id=\"{0}-h\">{1}</h2>\n{2}</section>\n",
      id, title, html);
}

std::string Sections::contents() const {
  return "<nav aria-label=\"Contents\"><ul>\n" + contents_ + "</ul></nav>\n";
}

}  // namespace twinrun::html
