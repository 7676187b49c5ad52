// A training step of the user's own as an experiment: HLO or StableHLO text, its binding, initial state and batches, from files.
// On the data's path: files -> program/import -> Experiment -> pipeline.h.
//
//   TWINRUN_ASSIGN(Experiment e, import_experiment({.program = "step.hlo"}));    // step.json, step.state.npz, step.batch.npz
//   diagnose(std::move(e), options, &progress, &stop);
#pragma once

#include <string>

#include "harness/experiment/experiment.h"
#include "program/import/import.h"

namespace twinrun {

struct ImportRequest {
  std::string program;  // HLO text or StableHLO text
  std::string binding, state,
      batch;  // "": STEM.json, STEM.state.npz, STEM.batch.npz beside it, or arguments.safetensors
  Overrides overrides;  // train.steps, tpu.precision, diagnose.probe, ...
};

// The text alone, to be looked at: sizes that only a run knows are taken, and nothing need be importable. The first `state` parameters
// are the state; all of them where no binding is given and none can be guessed.
struct ProgramText {
  HloModule module;
  size_t state = 0;
};
Result<ProgramText> read_program_text(const ImportRequest& request);

// The step and what is written of it, without state or batches. A binding that is not there is guessed (default_binding).
Result<ImportedStep> import_program(const ImportRequest& request);

// Errors name file and place; what is missing, surplus or of another shape in state or batches is told all at once.
Result<Experiment> import_experiment(const ImportRequest& request);

// STEM.json: {"state": [names], "inputs": [names], "loss": index of a result}, and if need be "roles" and "results" (which result
// is each state's next value, null: none); or the step.json of `twinrun export`. docs/import.md#binding.
Result<StepBinding> parse_binding(const std::string& text, const std::string& file);

}  // namespace twinrun
