// Measures a profile: some steps of one of our engines, op by op, against the peak rates of this
// machine.
//
//   auto m = measured_profile(scenario, {.engine = "tpu", .threads = 2, .steps = 5});
//   to_profile_text(*m, 80);
#pragma once

#include "harness/host/progress.h"
#include "program/base/result.h"
#include "reports/profile.h"
#include "scenarios/scenario.h"

namespace twinrun {

struct MeasuredOptions {
  std::string engine = "tpu";  // "tpu" or "cpu"
  int threads = 1;
  int64_t steps = 5;  // after two steps of warm-up; fewer where the scenario has fewer
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

// Trains twice: once as usual, for the times of steps and input, and once op by op. Errors: an
// engine that is not ours; no step left to measure; errors of opening the data or preparing the
// engine.
Result<Profile> measured_profile(const Scenario& scenario, const MeasuredOptions& options);

}  // namespace twinrun
