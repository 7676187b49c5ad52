// Wraps a backend so that its engines compute with faults. For the caller it is a backend like any
// other, with the capabilities of the wrapped one.
//
//   auto log = std::make_shared<FaultLog>();
//   auto broken = with_faults(*make_backend("tpu", options), {*parse_fault("scale@dense1/*")},
//                             /*seed=*/1, log);
//   train(experiment, program, *broken, {});
//   log->runs.front()                          // what changed bits in the first run
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "backends/faults/faults.h"

namespace twinrun {

// The sealed log of what the faults changed. The diagnosis never sees it. Backends that share a log
// also share the count of runs, which makes intermittent faults (rate=) differ from one run to the
// next.
struct FaultLog {
  std::mutex mutex;
  // One entry per engine with faults, in the order in which the engines were destroyed.
  std::vector<std::vector<Activation>> runs;
  uint64_t prepared = 0;                      // number of engines prepared so far
  std::optional<int64_t> first_step() const;  // the earliest step with an activation, over all runs
};

// For a program of one core, faults that do not apply to it (on a collective, on another core) are
// left out. For several cores, prepare() fails as FaultHooks::make does. Returns `honest` itself if
// `faults` is empty.
std::unique_ptr<Backend> with_faults(std::unique_ptr<Backend> conforming,
                                     std::vector<FaultSpec> faults, uint64_t seed,
                                     std::shared_ptr<FaultLog> log = nullptr);

}  // namespace twinrun
