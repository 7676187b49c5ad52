// A training step of the user as an experiment: HLO or StableHLO text, its binding, initial state
// and batches, from files. On the data's path: files -> program/import -> Experiment -> pipeline.h.
//
//   // reads step.json, step.state.npz and step.batch.npz, too
//   TWINRUN_ASSIGN(Experiment e, import_experiment({.program = "step.hlo"}));
//   diagnose(std::move(e), options, &progress, &stop);
#pragma once

#include <string>

#include "harness/experiment/experiment.h"
#include "program/import/import.h"

namespace twinrun {

struct ImportRequest {
  std::string program;  // HLO text or StableHLO text
  // "": STEM.json, STEM.state.npz, STEM.batch.npz beside it; or arguments.safetensors for the last
  // two.
  std::string binding, state, batch;
  Overrides overrides;  // train.steps, tpu.precision, diagnose.probe, ...
  // The same step on one device, for the whole batch; "": none. Files beside it are its own, and
  // the others are those of the sharded step.
  std::string whole = {};
};

// The text alone, for inspection: sizes that are known only at run time are accepted, and ops need
// not be importable. The first `state` parameters are the state; all of them if no binding is given
// and none can be guessed.
struct ProgramText {
  HloModule module;
  size_t state = 0;
};
Result<ProgramText> read_program_text(const ImportRequest& request);

// The step and its notes, without state or batches. A missing binding is guessed (default_binding).
Result<ImportedStep> import_program(const ImportRequest& request);

// Errors name the file and the place in it; all arrays of state or batches that are missing,
// surplus or of another shape are listed together.
Result<Experiment> import_experiment(const ImportRequest& request);

// Parses STEM.json: {"state": [names], "inputs": [names], "loss": index of a result}, and
// optionally "roles" and "results" (which result is the next value of each state variable; null:
// none); or the step.json of `twinrun export`. See docs/guides/import.md#binding.
Result<StepBinding> parse_binding(const std::string& text, const std::string& file);

}  // namespace twinrun
