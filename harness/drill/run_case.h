// Runs one case: first the truth is decided, then the diagnosis runs, which sees only a Backend and
// a scenario. The log of the injected faults is opened after that.
//
//   TWINRUN_ASSIGN(auto r, run_case("engine.drill_mlp.1.17",
//                     {.directory = "out/cases", .cache = "out/references"}, truths));
#pragma once

#include "harness/diagnose/pipeline.h"
#include "harness/drill/truth.h"

namespace twinrun::drill {

// How to fix what keeps cases from being run.
inline constexpr const char* kFreeAndResume =
    "free what is short (disk, memory, limits), then go on with --resume";

struct CaseOptions {
  ProgramFiles program = {};  // of the plan
  std::string directory;      // for reports, one folder per case; wrong answers are kept
  std::string cache;          // folder of reference runs
  bool keep_all = false;      // keep reports of right answers, too
  const StopFlag* stop = nullptr;
  std::function<void(Evidence&)> sabotage;  // for tests: DiagnoseOptions::sabotage
};

// Errors of the case are in the record's `error`. Returns nullopt where it was interrupted. Errors:
// the machine kept the case from being run (full disk, no memory), which says nothing about it.
Result<std::optional<CaseRecord>> run_case(const std::string& id, const CaseOptions& options,
                                           TruthCache& truths);

}  // namespace twinrun::drill
