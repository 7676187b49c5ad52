// Suggestions by likeness.
#include "scenarios/suggest.h"

#include <fmt/format.h>

#include "program/base/names.h"

namespace twinrun {

std::string suggested(std::string_view word, const std::vector<std::string_view>& candidates) {
  const std::string best = meant(word, {candidates.begin(), candidates.end()});
  return best.empty() ? "" : fmt::format("did you mean \"{}\"?", best);
}

}  // namespace twinrun
