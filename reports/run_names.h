// The names of the runs and their meanings: one table for the glossary, the first screen of
// report.html and its abbreviations.
//
//   for (const RunName& run : run_names())
//     run.name, run.words;              // "S", "the reference, sharded over the same cores"
//   words_of_run("T - S");              // "": takes single names only
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace twinrun::text {

struct RunName {
  std::string_view name, words;
  std::string_view brief;  // in tables: "reference, sharded"
};
std::span<const RunName> run_names();
std::string_view words_of_run(std::string_view name);
std::string_view brief_of_run(std::string_view name);  // "" for an unknown name
// "subject, sharded" of T; of T#3 "seed 3: subject, sharded"; an unknown name itself.
std::string called(std::string_view name);

// Two runs whose difference isolates something, as a row of a table and after "loss is 0.1 higher".
struct RunPair {
  std::string_view left, right, isolates, moves;
};
std::span<const RunPair> run_pairs();
std::string words_of_pair(
    std::string_view pair);  // of "T - S" what it moves; an unknown one itself

// Length of the run name that stands as a separate word at `at`; 0 where there is none.
size_t run_named_at(std::string_view text, size_t at);

}  // namespace twinrun::text
