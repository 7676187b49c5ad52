// The names of the runs and what each is: one table, from which the glossary, the first screen of report.html and its abbreviations
// take their words.
//
//   for (const RunName& run : run_names()) run.name, run.words;   // "S", "the reference, sharded over the same cores"
//   words_of_run("T - S");                                        // "": of one name alone
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

namespace twinrun::text {

struct RunName {
  std::string_view name, words;
};
std::span<const RunName> run_names();
std::string_view words_of_run(std::string_view name);

// How long the name of a run is that stands as a word of its own at `at`; 0 where none does.
size_t run_named_at(std::string_view text, size_t at);

}  // namespace twinrun::text
