// Exports a training step for XLA's own tools: the module, a description of its arguments and
// results, and the first step's values of both, so that it can be run and compared without this
// project.
//
//   TWINRUN_ASSIGN(const ExportedStep step, export_step(experiment, program, {.folder = "out"}));
//
// step.mlir                 StableHLO text
// step.json                 names, dtypes, shapes, in order; schema 1
// arguments.safetensors     of the first step: "NAME", or "NAME@0".. where replicas differ
//                           (docs/reference/engine-protocol.md)
// results.safetensors       of the first step on the engine cpu
#pragma once

#include <string>
#include <vector>

#include "harness/experiment/experiment.h"

namespace twinrun {

struct ExportOptions {
  std::string folder;
  bool values = false;  // make every op's value a result
  int threads = 1;
};

struct ExportedStep {
  std::vector<std::string> files;
  size_t ops = 0, arguments = 0, results = 0;
};

// Errors: an op that has no text form; a folder or file that cannot be written.
Result<ExportedStep> export_step(const Experiment& experiment, const Program& program,
                                 const ExportOptions& options);

}  // namespace twinrun
