// The axis on which losses are drawn, the same on pages and terminals: linear as long as that shows them, logarithmic where they span
// more than three decades. Where a loss diverges so far that the decades above what is usual would leave no room for the rest,
// they are squeezed into the uppermost part.
//
//   const Axis axis = axis_of_losses(report);
//   axis.part(2.3);                            // 0 at its low end, 1 at its high end
#pragma once

#include "reports/report.h"

namespace twinrun::text {

struct Axis {
  double low = 0, high = 1;  // low > high: nothing finite
  bool logarithmic = false;
  double knee = 0;  // > 0: what lies above it is squeezed, and logarithmic in any case

  bool shows(double value) const;  // finite, and positive on a logarithmic axis
  double part(double value) const;
  bool plain() const { return !logarithmic && knee == 0; }
};

inline constexpr double kBelowKnee = 0.7;  // of the axis

Axis axis_of_losses(const Report& report);

}  // namespace twinrun::text
