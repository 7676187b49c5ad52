// One side of a comparison of two installations: a trace that exists, or a command that is run
// under `python -m twinrun watch` and writes one. A script that has no PyTorch to watch but calls
// twinrun.diagnose gives the report of that diagnosis.
//
//   TWINRUN_ASSIGN(const RecordedSide a, side_of("exec:env-a/bin/python step.py", options));
//   a.trace;    // "" if only a.report is there
#pragma once

#include <string>

#include "harness/host/progress.h"
#include "program/base/result.h"

namespace twinrun {

struct RecordedSide {
  std::string name;           // the command or file, as given
  std::string trace, report;  // paths; one of them is ""
};

struct SideOptions {
  std::string folder;  // where a command's files go
  int steps = 2, first = 0;
  const StopFlag* stop = nullptr;
  Progress* progress = nullptr;
};
// Errors: no such file; the command is no Python with a script, failed, or left neither a trace nor
// a report. The end of what it printed is part of the message.
Result<RecordedSide> side_of(const std::string& text, const SideOptions& options);

}  // namespace twinrun
