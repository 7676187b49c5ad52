// Models a profile without a machine: the scenario's program on a modelled TPU core. Opens no data
// and runs nothing.
//
//   auto p = modelled_profile(scenario, {.generation = "v2"});
//   to_profile_text(*p, 80);
#pragma once

#include "program/base/result.h"
#include "program/graph/program.h"
#include "reports/profile.h"
#include "scenarios/scenario.h"

namespace twinrun {

struct ModelledOptions {
  std::string generation = "v2";
  bool bf16_activations = false;  // what if they were bf16 (device/core_model.h)
  bool advice = true;             // also model the profile after each recommendation
};

// The step of one core that is modelled.
Result<Program> modelled_step(const Scenario& scenario);

// Errors: no such generation; a batch that the cores do not divide; properties that only the data
// can tell (harness/experiment/experiment.h).
Result<Profile> modelled_profile(const Scenario& scenario, const ModelledOptions& options);

// Settings that make it faster, each with the profile modelled after it, the largest gain first.
// Gains below 1 % are left out.
Result<std::vector<Recommendation>> recommendations(const Scenario& scenario, const Profile& now,
                                                    const ModelledOptions& options);

}  // namespace twinrun
