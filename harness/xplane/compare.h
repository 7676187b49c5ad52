// Holds the ops of a capture against the model's prediction of the same step.
//
//   compare_with(capture, *modelled_profile(scenario, {.generation = "v3"}));
//   capture.comparison[0].matches[0];   // where the most time is lost
#pragma once

#include "reports/capture.h"
#include "reports/profile.h"

namespace twinrun {

// Ops are matched by name: the name of HLO, or the place in the user's source.
void compare_with(Capture& capture, const Profile& profile);

}  // namespace twinrun
