// The axis on which losses are drawn, the same on pages and terminals. It is linear where that
// shows the losses, and logarithmic where they span more than three decades. Where a loss diverges
// so far that the decades above the usual losses would leave no room for the rest, those decades
// are compressed into the uppermost part of the axis.
//
//   const Axis axis = axis_of_losses(report);
//   axis.part(2.3);                            // 0 at its low end, 1 at its high end
#pragma once

#include "reports/report.h"

namespace twinrun::text {

struct Axis {
  double low = 0, high = 1;  // low > high: no finite loss
  bool logarithmic = false;
  double knee = 0;  // > 0: what lies above it is compressed, always logarithmically

  bool shows(double value) const;  // finite, and positive on a logarithmic axis
  double part(double value) const;
  bool plain() const { return !logarithmic && knee == 0; }
};

inline constexpr double kBelowKnee = 0.7;  // share of the axis below the knee

Axis axis_of_losses(const Report& report);

}  // namespace twinrun::text
