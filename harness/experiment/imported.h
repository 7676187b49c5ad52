// A training step of the user as an experiment: HLO or StableHLO text, its binding, initial state
// and batches, from files. On the data's path: files -> program/import -> Experiment -> pipeline.h.
//
//   // reads step.json, step.state.npz and step.batch.npz, too
//   TWINRUN_ASSIGN(Experiment e, import_experiment({.program = "step.hlo"}));
//   diagnose(std::move(e), options, &progress, &stop);
#pragma once

#include <map>
#include <string>

#include "harness/experiment/experiment.h"
#include "program/import/import.h"

namespace twinrun {

// The text alone, for inspection: sizes that are known only at run time are accepted, and ops need
// not be importable. The first `state` parameters are the state; all of them if no binding is given
// and none can be guessed.
struct ProgramText {
  HloModule module;
  size_t state = 0;
};
Result<ProgramText> read_program_text(const ProgramFiles& files);

// The step and its notes, without state or batches. A missing binding is guessed (default_binding).
// `problems` gets what has no form here, if that is the error.
Result<ImportedStep> import_program(const ProgramFiles& files,
                                    std::vector<ImportProblem>* problems = nullptr);

// Errors name the file and the place in it; all arrays of state or batches that are missing,
// surplus or of another shape are listed together. The files in the result's scenario are those
// that were read, the found ones included.
Result<Experiment> import_experiment(const ProgramFiles& files, const Overrides& overrides = {});
// The experiment of a scenario that ran an imported program, from its program_files. Errors: these
// are not given; what they hold is not what `scenario.imported` records.
Result<Experiment> reopen_imported(const Scenario& scenario);

// What differs between the [program] lines of two scenarios, one thing a line: "\n  the batches:
// ..; recorded: ..". "" if nothing does.
std::string differences(const std::string& recorded, const std::string& given);

// Where an imported program lay, as keys of RunFile::environment: a hint for whoever runs it again,
// who checks what the files hold. files_in returns empty names where there are none.
void keep_files(const ProgramFiles& files, std::map<std::string, std::string>& environment);
ProgramFiles files_in(const std::map<std::string, std::string>& environment);
// Sets the program_files of a scenario that a run stored: `given`, or where `given` names no
// program, those of the run's environment. Error: `given` names a program, and the run had none.
Status find_program(const ProgramFiles& given,
                    const std::map<std::string, std::string>& environment, Scenario& scenario);

// Parses STEM.json: {"state": [names], "inputs": [names], "loss": index of a result}, and
// optionally "roles" and "results" (which result is the next value of each state variable; null:
// none); or the step.json of `twinrun convert --to stablehlo`. See docs/guides/import.md#binding.
Result<StepBinding> parse_binding(const std::string& text, const std::string& file);

}  // namespace twinrun
