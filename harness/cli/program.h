// A program of the user in place of a scenario: --program FILE with its state, batches and binding,
// for every verb that trains or runs a scenario.
//
//   add_program_options(options);            // in place of add_scenario_options
//   ... parse(args, usage, example, options, {"?SCENARIO"}) ...
//   TWINRUN_ASSIGN(const Experiment e, experiment_of(parsed));
#pragma once

#include <string>

#include "harness/cli/options.h"
#include "harness/experiment/experiment.h"

namespace twinrun::cli {

// --set, --program, --state, --batch, --binding, --held-out.
void add_program_options(Options& options);
// Those but --set.
void add_program_files(Options& options);
// The same for a verb that takes what an earlier run has written.
void add_program_of_run(Options& options);

// The files that --program and its options name; program is "" without --program. Errors: --state
// and the like without --program.
// `program`: in place of --program.
Result<ProgramFiles> program_files_of(const Parsed& parsed, const std::string& program = "");
// What the scenario argument or --program names. Errors: neither, or both.
Result<ExperimentSource> source_of(const Parsed& parsed, const std::string& argument = "?SCENARIO");
// The same, opened, with --set.
Result<Experiment> experiment_of(const Parsed& parsed, const std::string& argument = "?SCENARIO");

}  // namespace twinrun::cli
