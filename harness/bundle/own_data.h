// A scenario that needs no files but one of its own: the very batches that its steps see, and a few held-out samples, as .npz.
//
//   Scenario s = *with_own_data(scenario, "folder", {.noise = true});   // folder/data.npz, s.data.dir = "folder"
#pragma once

#include <string>

#include "program/base/result.h"
#include "scenarios/scenario.h"

namespace twinrun {

inline constexpr const char* kOwnData = "data.npz";

struct OwnDataOptions {
  // Features and labels are drawn instead: features uniform between the least and the largest of their values, tokens of the
  // vocabulary, labels of the classes. Shapes and which tokens are padding stay.
  bool noise = false;
};

// The batches are those of the scenario's steps, in its order, bit for bit (but for noise): it trains on them unshuffled.
// Of held-out samples as many as one batch has.
Result<Scenario> with_own_data(const Scenario& scenario, const std::string& folder,
                               const OwnDataOptions& options);

}  // namespace twinrun
