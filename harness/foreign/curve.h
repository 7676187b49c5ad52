// A scalar over training steps, as runs, logs and event files hold it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace twinrun {

struct Curve {
  std::string name;            // "loss", "train/loss"
  std::vector<int64_t> steps;  // ascending, each once
  std::vector<double> values;  // one per step; may be NaN or infinite
  bool binary32 = false;       // every value was a binary32 number where it was made
};

}  // namespace twinrun
