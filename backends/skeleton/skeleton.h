// `skeleton`: the smallest engine that runs a program, as a template. Copy the folder, rename it
// and replace the arithmetic; docs/guides/own-engine.md has the steps. Its place on the data's
// path: Program
// -> Backend::prepare -> Engine::step -> run.
//
//   auto backend = make_skeleton_backend({.threads = 1});
//   auto engine = backend->prepare(program);            // error: lists what this engine lacks
//   (*engine)->step(0, states, inputs, outputs);        // states then hold the new state
#pragma once

#include <memory>

#include "backends/core/backend.h"

namespace twinrun {

// To register it, add a row to kBackends in backends/registry.cc:
//   Entry{"skeleton", make_skeleton_backend}
std::unique_ptr<Backend> make_skeleton_backend(const BackendOptions& options);

}  // namespace twinrun
