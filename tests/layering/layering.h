// Checks the rules of docs/developers/architecture.md on the sources: which folder may include which,
// where printing is allowed, which headers a file for one instruction set may reach, how long a file
// may be. The checks are pure functions of the texts, so that layering_test.cc can plant violations.
//
//   Files files = read_tree(TWINRUN_SOURCE_DIR);       // "program/base/bits.h" -> its text
//   for (const auto& v : check_layering(files)) ...    // v.file, v.line, v.what
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace twinrun::layering {

using Files = std::map<std::string, std::string>;  // path from the repository's root -> text

struct Violation {
  std::string file;
  int line = 0;  // from 1; 0: the whole file
  std::string what;
};

// Every source (*.h, *.cc, *.def, *.py) below the top-level folders of the library (program/ to
// harness/), tests/, bench/ and adapters/ of `root`.
Files read_tree(const std::string& root);

// `text` with comments replaced by spaces, and the contents of string and character literals too
// unless `keep_strings`. Line breaks stay, so that line numbers do not change.
std::string strip(std::string_view text, bool keep_strings);

// The folder whose row in the table of layers applies to a path, such as "program/base" or
// "harness/cli"; "" if no row does.
std::string_view layer_of(std::string_view path);

// Every #include "..." is one that the table of layers allows.
std::vector<Violation> check_arrows(const Files& files);
// Every folder of the library that holds sources has its own row in the table.
std::vector<Violation> check_rows(const Files& files);
// No folders include each other in a circle.
std::vector<Violation> check_circles(const Files& files);
// Only harness/cli prints, parses argv or exits.
std::vector<Violation> check_speech(const Files& files);
// backends/kernels/*_{avx2,avx512,avx512bf16,amx}.cc include no headers but ours and immintrin.h, stdint.h and
// stddef.h, not even indirectly.
std::vector<Violation> check_isa(const Files& files);
// No source has more than 600 lines.
std::vector<Violation> check_length(const Files& files);
// All of these checks.
std::vector<Violation> check_layering(const Files& files);

}  // namespace twinrun::layering
