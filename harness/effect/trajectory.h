// Two kinds of runs compared over a number of paired seeds that is fixed beforehand, against a margin: for `twinrun compare`.
//
//   auto row = compare_paired("T - R", t_losses, r_losses, margin);
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

// The user's, or twice the standard deviation between the seeds of the reference runs (the guide's random variance).
Margin choose_margin(double user_margin, const std::vector<double>& reference_losses,
                     std::string_view user_source = "diagnose.margin",
                     std::string_view reference = "R");

// Paired differences a[i] - b[i]. Two one-sided t tests at 5 % inside +-margin: "equivalent" (needs two pairs or more); the 95 % interval
// wholly beyond the margin: "outside"; with one pair, or neither: "undetermined". Bit-equal losses: "identical".
TrajectoryRow compare_paired(const std::string& pair, const std::string& meaning,
                             const std::vector<double>& a, const std::vector<double>& b,
                             const Margin& margin);

double spread_of(const TrajectoryRow& row);  // standard deviation between the seeds' differences
// How many seeds of this spread, with 80 % power each, show a mean as large as the margin as other than 0 (two-sided, 5 %) and a
// mean of 0 as equivalent (TOST, 5 %): the least n with (t.975 + t.8) s / sqrt n and (t.95 + t.9) s / sqrt n at most the margin,
// the usual approximation (Julious 2004, "Sample sizes for clinical trials with normal data"). nullopt: more than 10000, no
// margin, or one seed says nothing of the spread.
std::optional<int> seeds_for_power(const TrajectoryRow& row);

}  // namespace twinrun
