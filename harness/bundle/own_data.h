// Rewrites a scenario so that it needs one data file only: the exact batches of its steps, and a
// few held-out samples, as .npz. Used by the reduction (reduce.h) for bundles.
//
//   Scenario s = *with_own_data(scenario, "folder", {.noise = true});   // s.data.dir is "folder"
#pragma once

#include <string>

#include "program/base/result.h"
#include "scenarios/scenario.h"

namespace twinrun {

inline constexpr const char* kOwnData = "data.npz";

struct OwnDataOptions {
  // Draws random features and labels instead: features uniform between their smallest and largest
  // value, tokens from the vocabulary, labels from the classes. Shapes and weights (which tokens
  // are padding) stay.
  bool noise = false;
};

// Writes folder/data.npz and returns the scenario that reads it. The batches are those of the
// scenario's steps, in order and bit for bit (unless they are noise), and are not shuffled. There
// are at most as many held-out samples as one batch has.
Result<Scenario> with_own_data(const Scenario& scenario, const std::string& folder,
                               const OwnDataOptions& options);

}  // namespace twinrun
