// The door: what `twinrun diagnose` is given, by its content, and the diagnosis of each kind. All
// end in a Report, which answer() writes, prints and turns into an exit code.
#pragma once

#include <string>
#include <vector>

#include "harness/cli/options.h"

namespace twinrun::cli {

enum class WhatKind : uint8_t {
  kScenario,  // a name of the library, or TOML
  kScript,    // a command of Python: [PYTHON] SCRIPT ARGS
  kTraces,    // of one job, one of each rank
  kModule,    // HLO or StableHLO text
  kReport     // the folder of a finished diagnosis, or its report.json
};
struct What {
  WhatKind kind = WhatKind::kScenario;
  std::vector<std::string> words;  // the command of a script; else paths, or the name
  // "train.py: a Python script; its first 4 training steps are recorded and judged"
  std::string understood;
};
// Errors: a file that cannot be diagnosed, with what to type instead.
Result<What> what_of(const std::vector<std::string>& words);

void add_step_options(Options& options);
void add_module_options(Options& options);
void add_answer_options(Options& options);  // --fail-on

void add_scenario_diagnosis_options(Options& options);

Result<int> diagnose_scenario(const Parsed& parsed, const What& what);
// A script or traces; with `against`, the other side.
Result<int> diagnose_step(const Parsed& parsed, const What& what, const What* against);
// Two finished diagnoses.
Result<int> diagnose_reports(const Parsed& parsed, const What& a, const What& b);
Result<int> diagnose_module(const Parsed& parsed, const std::string& module);

// Writes the report's files into report.directory if it is set, prints the report as --json,
// --verbose and --fail-on ask, and returns the exit code.
// `again`: it is printed again, so that its files stay as they are.
Result<int> answer(const Report& report, const Parsed& parsed, bool again = false);
// A finished diagnosis, printed again.
Result<int> show_report(const std::string& path, const Parsed& parsed);
// twinrun-results/NAME, or -o.
std::string results_folder(const Parsed& parsed, const std::string& name);

}  // namespace twinrun::cli
