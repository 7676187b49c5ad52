// A profile that needs no machine: a scenario's program on a core on paper. Opens no data and runs nothing.
//
//   auto p = modelled_profile(scenario, {.generation = "v2"});
//   to_profile_text(*p, 80);
#pragma once

#include "program/base/result.h"
#include "reports/chrome_trace.h"
#include "reports/profile.h"
#include "scenarios/scenario.h"

namespace twinrun {

struct ModelledOptions {
  std::string generation = "v2";
  bool bf16_activations = false;  // what if (device/core_model.h)
  bool advice = true;             // model each recommendation as well
};

// Errors: no such generation; a batch that does not divide; what only the data tell (harness/experiment/experiment.h).
Result<Profile> modelled_profile(const Scenario& scenario, const ModelledOptions& options);

// What may be set to go faster, each with what the model says after it, the largest gain first. Below 1 % nothing is said.
Result<std::vector<Recommendation>> recommendations(const Scenario& scenario, const Profile& now,
                                                    const ModelledOptions& options);

}  // namespace twinrun
