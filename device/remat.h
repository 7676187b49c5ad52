// Rematerialisation on paper: activations that are dropped after their last forward reader and computed again before their first
// backward one. Works on the lifetimes of an HBM plan (hbm_plan.h), which alone uses it.
#pragma once

#include <limits>
#include <vector>

#include "device/hbm_plan.h"

namespace twinrun::tpu {

// A buffer and the units that read it, ascending.
struct HeldValue {
  HbmBuffer buffer;
  std::vector<int> readers;
  int overwritten = std::numeric_limits<int>::max();  // the unit whose result takes the place
};

struct StepUnit {
  bool forward = false;  // before the backward pass begins
  bool fused = false;    // elementwise ops in one pass over memory
  double flops = 0;
};

// The first unit at which most bytes are held.
struct HbmPeak {
  int unit = 0;
  int64_t bytes = 0;
};
HbmPeak peak_of(const std::vector<HeldValue>& values, int units);

// Splits the lifetimes of what is computed again, "<op>.remat" being the second part, and prolongs those of what it is computed
// from. Returns the FLOPs of computing it. kSegments: the number of stretches with the lowest peak; nothing where none lowers it.
double rematerialise(Rematerialise kind, const std::vector<StepUnit>& units,
                     std::vector<HeldValue>& values);

}  // namespace twinrun::tpu
