// A model of rematerialisation: activations are dropped after their last forward reader and
// recomputed before their first backward one. Works on the lifetimes of an HBM plan; only
// hbm_plan.cc uses it.
//
//   const double flops = rematerialise(Rematerialise::kSegments, units, values);
#pragma once

#include <limits>
#include <vector>

#include "device/hbm_plan.h"

namespace twinrun::tpu {

// A buffer and the units that read it, in ascending order.
struct HeldValue {
  HbmBuffer buffer;
  std::vector<int> readers;
  int overwritten = std::numeric_limits<int>::max();  // the unit whose result reuses the buffer
};

struct StepUnit {
  bool forward = false;  // before the backward pass begins
  bool fused = false;    // elementwise ops in one pass over memory
  double flops = 0;
};

// The unit at which most bytes are held (the first of several), and their number.
struct HbmPeak {
  int unit = 0;
  int64_t bytes = 0;
};
HbmPeak peak_of(const std::vector<HeldValue>& values, int units);

// Splits the lifetimes of values that are recomputed ("<op>.remat" is the second part), and extends
// those of the values that they are computed from. Returns the FLOPs of recomputing. kSegments
// takes the number of segments with the lowest peak, and changes nothing if no number lowers it.
double rematerialise(Rematerialise kind, const std::vector<StepUnit>& units,
                     std::vector<HeldValue>& values);

}  // namespace twinrun::tpu
