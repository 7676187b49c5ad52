// A drill from end to end: cases in parallel, one thread each; what each gave is a line of DIR/cases.jsonl as soon as it is there, so
// that an interrupted drill goes on where it stopped.
//
//   auto records = run_drill({.plan = {{"drill_mlp"}, 200, 1}, .directory = "out", .threads = 2}, &progress, &stop);
//   to_terminal(summarise(*records), {...});
#pragma once

#include "harness/drill/matrix.h"
#include "harness/drill/run_case.h"

namespace twinrun::drill {

struct DrillOptions {
  CasePlan plan;
  std::vector<std::string> ids;  // these cases instead of a plan's
  std::string only;              // glob over kinds of faults and causes; "": all
  std::string directory;         // cases.jsonl, references/, reports of wrong answers in cases/
  bool resume = false;           // take what cases.jsonl has; else begin it again
  bool keep_all = false;         // keep every case's report
  int threads = 1;
  std::function<void(Evidence&)> sabotage;  // of tests: DiagnoseOptions::sabotage
};

struct Drill {
  std::vector<CaseRecord> records;  // in the order of the plan
  bool interrupted = false;
};
Result<Drill> run_drill(const DrillOptions& options, Progress* progress, const StopFlag* stop);

// The scenarios made for drills, in name order.
std::vector<std::string> litmus_scenarios();

}  // namespace twinrun::drill
