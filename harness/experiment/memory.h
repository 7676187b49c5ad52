// Will it fit: the HBM plan of a scenario's step or an imported one (device/hbm_plan.h) against a TPU generation, with
// what changes would do, each planned again. On the data's path: Experiment, or a step -> MemoryReport (reports/memory.h).
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
  bool host = false;  // our own engines' memory as well
};

// `step` is what one core runs. `experiment`: what it was built from, so that other batches and optimizers can be; nullptr for a step
// that nothing can build again.
MemoryReport report_memory(const Program& step, const tpu::Generation& generation,
                           const Experiment* experiment, const MemoryOptions& options = {});

}  // namespace twinrun
