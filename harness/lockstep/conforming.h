// Conforming engines of a declared arithmetic (backends/variants/variant.h) as the null hypothesis
// of the statistics in bias.h: what their results look like on the same inputs.
//
//   BiasWatch watch(conforming_engines(backend->capabilities()), seed);
#pragma once

#include "harness/lockstep/bias.h"

namespace twinrun {

// Computes elements in parallel if there is a pool.
ConformingElements conforming_engines(const Capabilities& declared, ThreadPool* pool = nullptr);

}  // namespace twinrun
