// Chooses the axis that losses need: linear, logarithmic, or compressed above a knee where a run
// diverges.
#include "reports/axis.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace twinrun::text {
namespace {

constexpr double kLinear = 1e3;  // largest / least that a linear axis shows
constexpr double kEven = 1e8;    // the same for a logarithmic axis without a knee
constexpr double kMax = 1e4;     // losses that many times above the first ones are not usual

double fraction(double at, double from, double to) {
  return to > from ? (at - from) / (to - from) : 0.5;
}

}  // namespace

bool Axis::shows(double value) const { return std::isfinite(value) && (!logarithmic || value > 0); }

double Axis::part(double value) const {
  const auto between = [](bool decades, double v, double from, double to) {
    return decades ? fraction(std::log10(v), std::log10(from), std::log10(to))
                   : fraction(v, from, to);
  };
  if (knee == 0) return between(logarithmic, value, low, high);
  return value <= knee ? kBelowKnee * between(logarithmic, value, low, knee)
                       : kBelowKnee + (1 - kBelowKnee) * between(true, value, knee, high);
}

Axis axis_of_losses(const Report& report) {
  Axis axis{INFINITY, -INFINITY};
  std::vector<double> all;
  double usual = 0;  // the largest first loss
  const auto see = [&](const std::vector<float>& values) {
    for (const float value : values) {
      if (std::isfinite(value)) all.push_back(value);
    }
  };
  for (const RunSummary& run : report.runs) {
    see(run.losses);
    const auto first = std::ranges::find_if(run.losses, [](float v) { return std::isfinite(v); });
    if (first != run.losses.end()) usual = std::max<double>(usual, std::abs(*first));
  }
  see(report.loss_band.low);
  see(report.loss_band.high);
  if (all.empty()) return axis;
  std::ranges::sort(all);
  axis.low = all.front();
  axis.high = all.back();
  if (!(axis.high > 0)) return axis;
  // Losses below 0 have no logarithm: the axis stays linear, and only the part above the knee is
  // logarithmic.
  const bool negative = axis.low < 0;
  const double positive = *std::ranges::upper_bound(all, 0.0), span = axis.high / positive;
  axis.logarithmic = !negative && span > kLinear;
  if (axis.logarithmic) axis.low = positive;
  if (!(usual > 0 && axis.high > kLinear * usual && (negative || span > kEven))) return axis;
  // Where the knee lies. After a spike most losses settle below some level, so the knee is above
  // nine tenths of them. A run that has diverged for good has most losses far up, so the knee is
  // just above its first losses.
  const double most = all[all.size() * 9 / 10];
  axis.knee = 1.2 * (most < kMax * usual ? std::max(most, usual) : usual);
  if (axis.knee * kLinear > axis.high) axis.knee = 0;
  return axis;
}

}  // namespace twinrun::text
