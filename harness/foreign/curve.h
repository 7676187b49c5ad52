// A scalar over training steps, as found in runs, logs and event files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace twinrun {

struct Curve {
  std::string name;            // "loss", "train/loss"
  std::vector<int64_t> steps;  // ascending, without duplicates
  std::vector<double> values;  // one per step; may be NaN or infinite
  bool binary32 = false;       // every value was a binary32 number originally
};

}  // namespace twinrun
