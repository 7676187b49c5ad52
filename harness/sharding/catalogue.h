// The catalogue of causes: what a change of meaning is called, what it means, what cures it, and
// which door names it. It is read from adapters/twinrun/causes.json, which the doors of PyTorch and
// JAX read as well.
//
//   catalogued("clipping")->share;                       // "clipping"
//   cause_words("no_all_reduce", "hlo", {{"names", "w"}, {"axes", "data"}}).cure;
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

struct CataloguedCause {
  std::string cause;  // "batch_norm"
  std::string means;  // in a table of causes: "each core, or group, normalises by its own samples"
  std::string shows;  // in which kinds under plain SGD, of scenarios: "g u s e"; "": not told
  std::string subject;   // of a sentence about a scenario: "per-core batch norm"
  std::string share;     // in a list of shares: "batch norm"
  std::string sentence;  // of a user's own step; {line} and the like are filled in
  std::map<std::string, std::string> cures;  // by framework: torch, jax
  // Of scenario, hlo, torch and jax: "yes" where the door names it, "as X" where X says the same,
  // or "no: " and the reason.
  std::map<std::string, std::string> doors;
};
const std::vector<CataloguedCause>& cause_catalogue();
const CataloguedCause* catalogued(std::string_view cause);  // nullptr: there is none

struct CauseWords {
  std::string sentence, cure;
};
// What is said of a cause in a step of this framework, with facts in the place of {their names}.
// A step that is a text ("hlo") is cured as one of JAX.
CauseWords cause_words(std::string_view cause, std::string_view framework,
                       const std::map<std::string, std::string>& facts);

// The table of docs/method/diagnosis.md.
std::string cause_table_markdown();

struct CauseFile {
  std::string_view name, text;
};
std::span<const CauseFile> cause_files();  // embedded: causes.json

}  // namespace twinrun
