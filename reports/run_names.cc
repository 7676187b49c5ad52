// The table of run names, and a search for a name in a text.
#include "reports/run_names.h"

#include <algorithm>
#include <array>

namespace twinrun::text {

std::span<const RunName> run_names() {
  static constexpr std::array<RunName, 11> kNames = {{
      {"R", "the reference, on the whole batch", "reference, whole batch"},
      {"S", "the reference, sharded as the subject is", "reference, sharded"},
      {"T", "the subject, on all its cores: what you see", "subject, sharded"},
      {"R1", "the reference, on one core's batch", "reference, one core's batch"},
      {"E1", "the subject, on one core's batch", "subject, one core"},
      {"R2", "R again as a control, with other threads and with memory full of NaN (poisoned)",
       "reference again (control)"},
      {"R'", "another name of R2", ""},
      {"T'", "the first steps of T again, as a control", ""},
      {"U", "the subject with the causes undone: the cure", "subject, cured"},
      {"L", "the subject with a larger batch: another cure", "subject, larger batch"},
      {"RL", "the reference with that larger batch", "reference, larger batch"},
  }};
  return kNames;
}

std::span<const RunPair> run_pairs() {
  static constexpr std::array<RunPair, 6> kPairs = {{
      {"E1", "R1", "the engine alone, on one core", "by the engine alone, on one core"},
      {"S", "R", "sharding alone, on the reference", "by sharding alone, on the reference"},
      {"T", "S", "the engine, sharded alike", "by the engine alone, sharded alike"},
      {"T", "R", "everything: what you see", "in all (the engine against the reference)"},
      {"U", "R", "what is left with the causes undone", "with the causes undone"},
      {"L", "RL", "what is left with a larger batch", "with a larger batch"},
  }};
  return kPairs;
}

std::string words_of_pair(std::string_view pair) {
  for (const RunPair& row : run_pairs()) {
    if (pair == std::string(row.left) + " - " + std::string(row.right))
      return std::string(row.moves);
  }
  return std::string(pair);
}

std::string_view words_of_run(std::string_view name) {
  const auto found = std::ranges::find(run_names(), name, &RunName::name);
  return found == run_names().end() ? std::string_view() : found->words;
}

std::string_view brief_of_run(std::string_view name) {
  const auto found = std::ranges::find(run_names(), name, &RunName::name);
  return found == run_names().end() ? std::string_view() : found->brief;
}

std::string called(std::string_view name) {
  const size_t seed = std::min(name.find('#'), name.size());
  const std::string_view brief = brief_of_run(name.substr(0, seed));
  return (seed < name.size() ? "seed " + std::string(name.substr(seed + 1)) + ": " : "") +
         std::string(brief.empty() ? name : brief);
}

size_t run_named_at(std::string_view text, size_t at) {
  if (at > 0 && std::string_view(" (|[,").find(text[at - 1]) == std::string_view::npos) return 0;
  const std::string_view rest = text.substr(at);
  for (const RunName& run : run_names()) {
    if (!rest.starts_with(run.name)) continue;
    const std::string_view after = rest.substr(run.name.size());
    if (after.empty() || std::string_view(" )|],;:").find(after[0]) != std::string_view::npos ||
        (after[0] == '.' && (after.size() == 1 || after[1] == ' ')))
      return run.name.size();
  }
  return 0;
}

}  // namespace twinrun::text
