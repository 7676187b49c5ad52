// An engine that is wrong on purpose: to whoever runs it, an engine like any other.
//
//   auto log = std::make_shared<FaultLog>();
//   auto broken = with_faults(*make_backend("tpu", options), {*parse_fault("scale@dense1/*")}, /*seed=*/1, log);
//   train(experiment, program, *broken, {});
//   log->runs.front()                          // what changed bits in the first engine that was run and let go
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backends/faults/faults.h"

namespace twinrun {

// The sealed log: the diagnosis never sees it. One entry per engine, in the order in which they were let go. Backends that
// share a log also share the count of runs by which intermittent faults (rate=) differ from one run to the next.
struct FaultLog {
  std::mutex mutex;
  std::vector<std::vector<Activation>> runs;
  uint64_t prepared = 0;                      // engines so far
  std::optional<int64_t> first_step() const;  // the first activated step of any run
};

// On one core, faults that have no place there (a collective, another core) are left out; on several, prepare() fails as
// FaultHooks::make does. Without faults: `honest` itself.
std::unique_ptr<Backend> with_faults(std::unique_ptr<Backend> honest, std::vector<FaultSpec> faults,
                                     uint64_t seed, std::shared_ptr<FaultLog> log = nullptr);

}  // namespace twinrun
