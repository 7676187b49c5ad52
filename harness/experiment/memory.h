// Whether a step fits into memory: the HBM plan (device/hbm_plan.h) of a scenario's step or an
// imported one against a TPU generation, with the effect of possible changes, each planned again.
// On the data's path: Experiment, or a step -> MemoryReport (reports/memory.h).
//
//   const MemoryReport m = report_memory(step, *find_generation("v2"), &experiment, {.fit = true});
//   fmt::print("{}", memory_text(m));
#pragma once

#include "device/machine.h"
#include "harness/experiment/experiment.h"
#include "reports/memory.h"

namespace twinrun {

struct MemoryOptions {
  bool fit = false;   // find the largest batch that fits
  bool host = false;  // report the memory of our own engines, too
};

// `step` is the step of one core. `experiment` is what it was built from, so that it can be built
// with other batches and optimizers; nullptr if that is not possible.
MemoryReport report_memory(const Program& step, const tpu::Generation& generation,
                           const Experiment* experiment, const MemoryOptions& options = {});

}  // namespace twinrun
