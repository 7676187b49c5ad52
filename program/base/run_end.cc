// Words for how a run ended.
#include "program/base/run_end.h"

#include <string_view>

namespace twinrun {
namespace {

constexpr std::string_view kCompleted = "completed", kInterrupted = "interrupted",
                           kDiverged = "diverged: ";

}  // namespace

std::string to_string(const RunEnd& end) {
  return end.kind == RunEnd::Kind::kDiverged
             ? std::string(kDiverged) + end.reason
             : std::string(end.completed() ? kCompleted : kInterrupted);
}

Result<RunEnd> parse_run_end(const std::string& text) {
  if (text == kCompleted) return RunEnd{};
  if (text == kInterrupted) return RunEnd{RunEnd::Kind::kInterrupted, ""};
  if (text.starts_with(kDiverged))
    return RunEnd{RunEnd::Kind::kDiverged, text.substr(kDiverged.size())};
  return Error{"found '" + text + "'; expected completed, interrupted or 'diverged: REASON'",
               "ended", ""};
}

}  // namespace twinrun
