// Files that the build embeds for report.html: style, script, library, licence.
//
//   for (const PageFile& file : page_files()) file.name;   // "page.css", "dygraph.min.js", ...
#pragma once

#include <span>
#include <string_view>

namespace twinrun {

struct PageFile {
  std::string_view name, text;
};
std::span<const PageFile> page_files();

}  // namespace twinrun
