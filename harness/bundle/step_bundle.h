// Bundles of recorded steps: the calls that a diagnosis of a script or trace accuses, with what they
// read and returned, and nothing else of the script; of a PROGRAM, all that was recorded.
#pragma once

#include <string>

#include "harness/bundle/bundle.h"
#include "harness/bundle/replay.h"

namespace twinrun {

// `report`: of a recorded step, as it lies in the folder `results`. Errors: it accuses nothing; the
// trace is gone or is another one; a whole recording is to be anonymised.
Result<Bundle> bundle_step(const Report& report, const std::string& results,
                           const std::string& path, const BundleOptions& options);

// Judges the recording of a bundle, whose file trace.twin is at `trace`.
Result<Replay> replay_step(const Manifest& manifest, const std::string& trace, int threads,
                           const StopFlag* stop);

}  // namespace twinrun
