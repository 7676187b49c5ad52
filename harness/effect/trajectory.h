// Compares two kinds of runs over a number of paired seeds that is fixed beforehand, against a
// margin. For `twinrun compare` (harness/gate/compare.h): values per seed -> TrajectoryRow.
//
//   auto row = compare_paired("T - R", "what the user sees", t_losses, r_losses, margin);
//   row.outcome;      // "identical" | "equivalent" | "outside" | "undetermined"
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/report.h"

namespace twinrun {

struct Margin {
  double value = 0;
  std::string source;  // "diagnose.margin", "2 standard deviations between 3 seeds of R"
  bool of_user = false;
};

// The user's margin, or twice the standard deviation between the seeds of the reference runs (the
// guide's random variance). 0 where the user gives none and there is one seed.
Margin choose_margin(double user_margin, const std::vector<double>& reference_losses,
                     std::string_view user_source = "diagnose.margin",
                     std::string_view reference = "R");

// Judges the paired differences a[i] - b[i]. "identical": all losses are bit-equal. "equivalent":
// two one-sided t tests at 5 % lie inside +-margin (needs two pairs or more). "outside": the 95 %
// interval lies wholly beyond the margin, or a run ended in NaN or Inf. "undetermined": one pair,
// or neither.
TrajectoryRow compare_paired(const std::string& pair, const std::string& meaning,
                             const std::vector<double>& a, const std::vector<double>& b,
                             const Margin& margin);

// Standard deviation of the differences between seeds.
double spread_of(const TrajectoryRow& row);
// The number of seeds of this spread that show, with 80 % power each, a mean as large as the margin
// to differ from 0 (two-sided, 5 %) and a mean of 0 to be equivalent (TOST, 5 %): the least n for
// which (t.975 + t.8) s / sqrt n and (t.95 + t.9) s / sqrt n are at most the margin, the usual
// approximation (Julious 2004, "Sample sizes for clinical trials with normal data"). nullopt: more
// than 10000, no margin, or one seed, which gives no spread.
std::optional<int> seeds_for_power(const TrajectoryRow& row);

}  // namespace twinrun
