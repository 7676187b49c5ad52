// How long the ops of some steps took on each core: an engine between the caller's and its own, which looks at the clock.
//
//   OpTimes times{3, 3};                                         // from the fourth step of the run on, three
//   auto backend = with_times(std::move(engine), times, /*ops=*/true);
//   train(experiment, program, *backend, {...});
//   write_file_atomically("trace.json", to_chrome_trace(chrome_trace(times, "tpu, 8 cores")));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "reports/chrome_trace.h"
#include "scenarios/data/pipeline_counters.h"

namespace twinrun {

struct TimedOp {
  std::string name, kind, phase, type;
  double begin = 0, end = 0;  // seconds since the first timed step began
};

struct TimedStep {
  int64_t step = 0;
  double begin = 0, end = 0;
  std::vector<std::vector<TimedOp>> cores;  // in the order in which each ran them
  std::vector<TimedOp> collectives;         // of all cores at once
};

struct OpTimes {
  int64_t first = 0, count = 0;  // which steps, counted from the run's first
  double zero = 0;               // steady_seconds() when the first timed step began
  std::vector<TimedStep> steps;
};

// A timed step runs op by op, every core all of its ops: neither fused nor shared between cores. Its bits are the same (docs/numerics.md).
// Without `ops`, for engines that take no hooks, only the steps are timed. `times` must outlive the backend and is for one run.
std::unique_ptr<Backend> with_times(std::unique_ptr<Backend> backend, OpTimes& times, bool ops);

// Two tracks more: when the training loop waited for a batch, and when the reader made batches, while steps were timed.
void add_input(ChromeTrace& trace, const OpTimes& times, const PipelineCounters& input);

// A track of steps, then one for each core; a collective is a span on every core.
ChromeTrace chrome_trace(const OpTimes& times, const std::string& process);

}  // namespace twinrun
