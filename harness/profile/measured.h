// A profile by the clock: some steps of one of our engines, op by op, against what this machine can do at all.
//
//   auto m = measured_profile(scenario, {.engine = "tpu", .threads = 2, .steps = 5});
//   to_profile_text(m->profile, 80);   to_chrome_trace(m->trace);
#pragma once

#include "harness/host/progress.h"
#include "program/base/result.h"
#include "reports/chrome_trace.h"
#include "reports/profile.h"
#include "scenarios/scenario.h"

namespace twinrun {

struct MeasuredOptions {
  std::string engine = "tpu";  // or cpu
  int threads = 1;
  int64_t steps = 5;  // after two that warm up; fewer where the scenario has fewer
  Progress* progress = nullptr;
  const StopFlag* stop = nullptr;
};

struct MeasuredProfile {
  Profile profile;
  ChromeTrace trace;
};

// Trains twice: as always, for the times of steps and of the input, and op by op. Errors: an engine of others; steps below 1; what
// opening the data or preparing the engine says.
Result<MeasuredProfile> measured_profile(const Scenario& scenario, const MeasuredOptions& options);

}  // namespace twinrun
