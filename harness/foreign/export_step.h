// A training step as files that XLA's own tools take: the module, what its arguments and results are, and the first step's
// values of both, so that somebody without this project can run it and see whether the numbers agree.
//
//   TWINRUN_ASSIGN(const ExportedStep step, export_step(experiment, program, {.folder = "out"}));
//
// step.mlir                 StableHLO text
// step.json                 names, dtypes, shapes, in order; schema 1
// arguments.safetensors     the first step's, "NAME", or "NAME@0".. where replicas differ (docs/engine-protocol.md)
// results.safetensors       of that step on the engine cpu
#pragma once

#include <string>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun {

struct ExportOptions {
  std::string folder;
  bool values = false;  // every op's value is a result
  int threads = 1;
};

struct ExportedStep {
  std::vector<std::string> files;
  size_t ops = 0, arguments = 0, results = 0;
};

// Errors: an op that is not to be had as text, a folder or file that cannot be written.
Result<ExportedStep> export_step(const Experiment& experiment, const Program& program,
                                 const ExportOptions& options);

}  // namespace twinrun
