// Which loss curves diverge, and where: arithmetic on the runs that a report already holds, so that
// every format shows the same. Pairs and their meaning: docs/method/diagnosis.md, "The runs".
//
//   for (const DriftRow& row : drift_of(report)) { row.pair; row.first_step; row.largest; }
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "reports/report.h"

namespace twinrun::text {

// The run of that name; null where there is none.
const RunSummary* find_run(const Report& report, std::string_view name);

struct DriftRow {
  std::string pair;                   // "T - R"
  std::string isolates;               // "everything: what you see"
  int64_t steps = 0;                  // that both runs have
  std::optional<int64_t> first_step;  // first step whose losses differ in their bits
  double largest = 0;                 // of |difference| over the steps; NaN or Inf when a loss is
  double last = 0;                    // signed difference at the last common step
  std::vector<double> sizes;          // |difference| at each step; 0: same bits
};

// The pairs of the four-corner experiment that are present and have losses.
std::vector<DriftRow> drift_of(const Report& report);

// Runs whose loss curves have the same bits, under one name: "R = R2".
struct Curve {
  std::string names;
  const std::vector<float>* losses = nullptr;
};
std::vector<Curve> curves_of(const Report& report);

// The finding that the headline rests on: the earliest one of the verdict's class. Null when no
// such finding names a step or an op.
const Finding* first_divergence(const Report& report);

// The step from which a curve is NaN or Inf; nullopt when it never is.
std::optional<int64_t> broken_from(const std::vector<float>& losses);

// "step 3, gradient, core 5"; empty when the finding names none of them.
std::string place_of(const Finding& finding);

}  // namespace twinrun::text
