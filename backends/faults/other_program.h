// An engine whose script means something else than was asked: it secretly runs the program of another sharding, or is fed
// otherwise. The engine itself is honest. To whoever runs it, an engine like any other.
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

// Programs of one core, and those that nothing says how to build again, run as they are. Engine::program() and the trace are of
// the program that is executed; what it is fed otherwise stands in no program, and shows only in what its ops read. The state
// has the same variables in the same order. prepare(): an error where the asked program is itself misfed, or the change asks
// for what cannot be built.
std::unique_ptr<Backend> with_other_program(std::unique_ptr<Backend> honest,
                                            std::function<Sharding(Sharding)> change);

}  // namespace twinrun
