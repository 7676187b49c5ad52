// How a training run ended, as files and reports have it: "completed", "interrupted", or
// "diverged: NaN in the loss at step 3".
//
//   if (!file.ended.completed()) note(to_string(file.ended));
#pragma once

#include <string>

#include "program/base/result.h"

namespace twinrun {

struct RunEnd {
  enum class Kind : uint8_t { kCompleted, kInterrupted, kDiverged } kind = Kind::kCompleted;
  std::string reason;  // what diverged, and where

  bool completed() const { return kind == Kind::kCompleted; }
  bool interrupted() const { return kind == Kind::kInterrupted; }
  bool operator==(const RunEnd&) const = default;
};

std::string to_string(const RunEnd& end);
Result<RunEnd> parse_run_end(const std::string& text);

}  // namespace twinrun
