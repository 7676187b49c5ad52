// The arrows of the house: which room may include which, who may print, what a file for one
// instruction set may see. A pure function of texts, so that its own test can plant violations.
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

// Every source (*.h, *.cc, *.def, *.py) below the rooms, tests/, bench/ and adapters/ of `root`.
Files read_tree(const std::string& root);

// `text` with comments blanked, and the contents of string and character literals too unless
// `keep_strings`. Line breaks stay, so that line numbers do.
std::string strip(std::string_view text, bool keep_strings);

// The folder whose row in the table of layers a path belongs to: "program/base", "harness/cli"; "" outside of the rooms.
std::string_view layer_of(std::string_view path);

std::vector<Violation> check_arrows(const Files& files);   // #include "..." between layers
std::vector<Violation> check_rows(const Files& files);     // a row for every folder of the rooms
std::vector<Violation> check_circles(const Files& files);  // folders that include each other
std::vector<Violation> check_speech(
    const Files& files);  // only harness/cli prints, parses argv or exits
std::vector<Violation> check_isa(
    const Files& files);  // backends/kernels/*_{avx2,avx512,amx}.cc, transitively
std::vector<Violation> check_length(const Files& files);    // no source over 600 lines
std::vector<Violation> check_layering(const Files& files);  // all of them

}  // namespace twinrun::layering
