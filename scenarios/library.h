// The scenarios that are embedded in the binary. The build takes them from
// scenarios/library/*.toml.
//
//   for (const auto& file : library_files()) fmt::print("{}\n", file.name);    // "digits_cnn", ...
#pragma once

#include <span>
#include <string_view>

namespace twinrun {

struct LibraryFile {
  std::string_view name;
  std::string_view text;
};

std::span<const LibraryFile> library_files();  // in name order

}  // namespace twinrun
