// One case from end to end: the truth first, then the diagnosis, which sees a Backend and a scenario and nothing else; only then
// is the sealed log opened.
//
//   CaseRecord r = run_case("engine.drill_mlp.1.17", {.directory = "out/cases", .cache = "out/references"}, truths);
#pragma once

#include "harness/diagnose/pipeline.h"
#include "harness/drill/truth.h"

namespace twinrun::drill {

struct CaseOptions {
  std::string directory;  // the reports, a folder per case; kept only where keep() says so
  std::string cache;      // of reference runs
  bool keep_all = false;  // else: reports of cases that were answered wrong
  const StopFlag* stop = nullptr;
  std::function<void(Evidence&)> sabotage;  // of tests: DiagnoseOptions::sabotage
};

// Never fails: what went wrong is in the record's `error`. Nothing where it was interrupted.
std::optional<CaseRecord> run_case(const std::string& id, const CaseOptions& options,
                                   TruthCache& truths);

}  // namespace twinrun::drill
