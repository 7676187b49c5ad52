// Bundles of compiled modules, and of the equations that a diagnosis of a JAX step accuses: the
// module's text, and the values that it was given and returned.
#pragma once

#include <string>

#include "harness/bundle/bundle.h"
#include "harness/bundle/replay.h"

namespace twinrun {

// `report`: of a module or of a JAX step, as it lies in the folder `results`. Errors: a JAX step
// that accuses no equations; files that are gone, or give another verdict than the report's.
Result<Bundle> bundle_module(const Report& report, const std::string& results,
                             const std::string& path, const BundleOptions& options);

// Judges the module of a bundle, whose members are in `folder`.
Result<Replay> replay_module(const Manifest& manifest, const std::string& folder, int threads);

}  // namespace twinrun
