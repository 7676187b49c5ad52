// How long the ops of some steps took on each core. An engine between the caller and its own engine
// reads the clock.
//
//   OpTimes times{3, 3};  // three steps, from the fourth of the run on
//   auto backend = with_times(std::move(engine), times, /*ops=*/true);
//   train(experiment, program, *backend, {...});
//   write_file_atomically("trace.json", to_chrome_trace(chrome_trace(times, "tpu, 8 cores")));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "backends/core/communicator.h"
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
  std::vector<std::vector<TimedOp>> cores;  // in the order in which the core ran them
  std::vector<TimedOp> collectives;         // one span for all cores
};

struct OpTimes {
  int64_t first = 0, count = 0;  // the timed steps, counted from the first of the run
  double zero = 0;               // steady_seconds() when the first timed step began
  std::vector<TimedStep> steps;
};

// A timed step runs op by op, and every core runs all of its ops: they are neither fused nor shared
// between cores. Its bits are the same (docs/method/numerics.md). With ops = false, for engines
// that take no hooks, only whole steps are timed. `times` must outlive the backend and serves one
// run.
std::unique_ptr<Backend> with_times(std::unique_ptr<Backend> backend, OpTimes& times, bool ops);

// Gets the times of the cores that other ranks computed, all of which ran the same ops. The clock
// of a rank begins with its first timed step.
void gather_times(OpTimes& times, Communicator& ranks);

// Adds two tracks: when the training loop waited for a batch, and when the reader made batches,
// during the timed steps.
void add_input(ChromeTrace& trace, const OpTimes& times, const PipelineCounters& input);

// One track of steps, then one for each core; a collective is a span on every core.
ChromeTrace chrome_trace(const OpTimes& times, const std::string& process);

}  // namespace twinrun
