// `skeleton`: the smallest engine that runs a program. Copy the folder, rename, replace the
// arithmetic; docs/engines.md has the steps. Where it sits: Program -> Backend::prepare ->
// Engine::step -> run.
//
//   auto backend = make_skeleton_backend({.threads = 1});
//   auto engine = backend->prepare(program);            // errors: what this engine lacks
//   (*engine)->step(0, states, inputs, outputs);        // states: after the step
#pragma once

#include <memory>

#include "backends/core/backend.h"

namespace twinrun {

// Its registry line (backends/registry.cc, kBackends): Entry{"skeleton", make_skeleton_backend}
std::unique_ptr<Backend> make_skeleton_backend(const BackendOptions& options);

}  // namespace twinrun
