// Suggestions by edit distance.
#include "scenarios/suggest.h"

#include <fmt/format.h>

#include <algorithm>

#include "program/base/names.h"

namespace twinrun {

std::string did_you_mean(std::string_view word, const std::vector<std::string_view>& candidates) {
  if (word.size() > 64) return "";
  const std::string lower = lower_case(word);
  std::string_view best;
  int least = 0;
  for (std::string_view candidate : candidates) {
    const int distance = edit_distance(lower, candidate);
    const int most = std::max(1, static_cast<int>(std::max(word.size(), candidate.size())) / 3);
    if (distance <= most && (best.empty() || distance < least)) {
      best = candidate;
      least = distance;
    }
  }
  return best.empty() ? "" : fmt::format("did you mean \"{}\"?", best);
}

}  // namespace twinrun
