// Runs a Python script under `python -m twinrun watch`, which records its steps. A script that has no PyTorch to watch but calls
// twinrun.diagnose gives the report of that diagnosis.
//
//   TWINRUN_ASSIGN(const RecordedSide a, record_side({"env-a/bin/python", "step.py"}, options));
//   a.trace;    // "" if only a.report is there
#pragma once

#include <string>
#include <vector>

#include "harness/host/progress.h"
#include "program/base/result.h"

namespace twinrun {

struct RecordedSide {
  std::string name;           // the command or file, as given
  std::string trace, report;  // paths; one of them is ""
};

struct SideOptions {
  std::string folder;  // where files go that are not kept
  std::string trace;   // the file to write
  std::string report;  // the folder for what the script diagnoses itself; "": inside of `folder`
  int steps = 2, first = 0;
  std::string allowed;  // given on to a script that diagnoses a JAX step: --allow
  const StopFlag* stop = nullptr;
  Progress* progress = nullptr;
};
// Whether a word of a command starts Python.
bool is_python(const std::string& word);

// Becomes `python -m twinrun WORDS` of $TWINRUN_PYTHON, else python3. Returns only an error.
Error become_package(const std::vector<std::string>& words);

// Errors: the command is no Python with a script, failed, or left neither a trace nor a report. The
// end of what it printed is part of the message.
Result<RecordedSide> record_side(const std::vector<std::string>& words, const SideOptions& options);

}  // namespace twinrun
