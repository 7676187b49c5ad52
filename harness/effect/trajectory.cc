// Margins, t intervals and equivalence tests over a fixed number of paired seeds.
#include "harness/effect/trajectory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "harness/effect/moments.h"
#include "program/base/distributions.h"

namespace twinrun {

Margin choose_margin(double user_margin, const std::vector<double>& reference_losses,
                     std::string_view user_source, std::string_view reference) {
  if (user_margin > 0) return {user_margin, std::string(user_source), true};
  if (reference_losses.size() < 2)
    return {0, fmt::format("none: one seed, and {} is not set", user_source), false};
  return {2 * deviation_of(reference_losses),
          fmt::format("2 standard deviations between {} seeds of {}", reference_losses.size(),
                      reference),
          false};
}

TrajectoryRow compare_paired(const std::string& pair, const std::string& meaning,
                             const std::vector<double>& a, const std::vector<double>& b,
                             const Margin& margin) {
  TrajectoryRow row;
  row.pair = pair;
  row.meaning = meaning;
  row.metric = kLossMetric;
  row.margin = margin.value;
  row.margin_source = margin.source;
  for (size_t i = 0; i < a.size(); ++i) row.differences.push_back(a[i] - b[i]);
  const bool identical = std::ranges::all_of(row.differences, [](double d) { return d == 0; });
  row.mean = row.low = row.high = row.tost_low = row.tost_high = mean_of(row.differences);
  if (identical) {
    row.outcome = PairedOutcome::kIdentical;
    return row;
  }
  if (!std::isfinite(row.mean)) {
    row.outcome = PairedOutcome::kOutside;  // one of them ended in NaN or Inf
    return row;
  }
  const auto n = static_cast<double>(row.differences.size());
  row.outcome = PairedOutcome::kUndetermined;
  if (n < 2) return row;
  const double error = deviation_of(row.differences) / std::sqrt(n);
  const double wide = student_quantile(n - 1, 0.975) * error,
               narrow = student_quantile(n - 1, 0.95) * error;
  row.detectable = wide + student_quantile(n - 1, 0.8) * error;
  row.low = row.mean - wide;
  row.high = row.mean + wide;
  row.tost_low = row.mean - narrow;
  row.tost_high = row.mean + narrow;
  if (margin.value > 0 && row.tost_low > -margin.value && row.tost_high < margin.value) {
    row.outcome = PairedOutcome::kEquivalent;
  } else if (row.low > margin.value || row.high < -margin.value) {
    row.outcome = PairedOutcome::kOutside;
  }
  return row;
}

double spread_of(const TrajectoryRow& row) { return deviation_of(row.differences); }

std::optional<int> seeds_for_power(const TrajectoryRow& row) {
  if (row.differences.size() < 2 || !std::isfinite(row.mean) || !(row.margin > 0))
    return std::nullopt;
  constexpr int kMax = 10000;
  const double spread = spread_of(row);
  for (int n = 2; n <= kMax; ++n) {
    const auto at = [&](double p) { return student_quantile(n - 1, p); };
    const double most = std::max(at(0.975) + at(0.8), at(0.95) + at(0.9));
    if (most * spread / std::sqrt(n) <= row.margin) return n;
  }
  return std::nullopt;
}

}  // namespace twinrun
