// Simulates a training script that does not do what was requested: the backend executes the program
// of another sharding, or feeds it other inputs, without saying so. The wrapped engine itself
// conforms. For the caller it is a backend like any other.
//
//   auto forgetful = with_other_program(*make_backend("tpu", options), [](Sharding s) {
//     s.reduce_gradients = false;
//     return s;
//   });
//   train(experiment, experiment.sharded(how), *forgetful, {});
#pragma once

#include <functional>
#include <memory>

#include "backends/core/backend.h"

namespace twinrun {

// `change` maps the requested sharding to the executed one. Programs of one core, and programs
// without a recipe (which cannot be resharded), run unchanged. Engine::program() and the trace show
// the executed program; a changed feeding appears in no program, only in what the ops read. The
// state has the same variables in the same order. prepare() returns an error if the requested
// program is itself misfed in another way, or if the changed sharding cannot be built.
std::unique_ptr<Backend> with_other_program(std::unique_ptr<Backend> conforming,
                                            std::function<Sharding(Sharding)> change);

}  // namespace twinrun
