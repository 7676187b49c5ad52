// How long the ops of some steps took on each core. An engine between the caller and its own engine
// reads the clock.
//
//   OpTimes times{3, 3};  // three steps, from the fourth of the run on
//   auto backend = with_times(std::move(engine), times, /*ops=*/true);
//   train(experiment, program, *backend, {...});
//   times.steps[0].cores[0][0].end;  // seconds
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

struct TimedOp {
  std::string name;
  double begin = 0, end = 0;  // seconds since the first timed step began
};

struct TimedStep {
  int64_t step = 0;
  double begin = 0, end = 0;
  std::vector<std::vector<TimedOp>> cores;  // in the order in which the core ran them
  std::vector<TimedOp> collectives;         // one span for all cores
};

struct OpTimes {
  int64_t first = 0, count = 0;  // the timed steps, counted from the first of the run
  std::vector<TimedStep> steps;
};

// A timed step runs op by op, and every core runs all of its ops: they are neither fused nor shared
// between cores. Its bits are the same (docs/method/numerics.md). With ops = false only whole steps
// are timed. `times` must outlive the backend and serves one
// run.
std::unique_ptr<Backend> with_times(std::unique_ptr<Backend> backend, OpTimes& times, bool ops);

}  // namespace twinrun
