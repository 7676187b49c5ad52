// Runs a whole drill: cases in parallel, one thread each. The result of each case is appended to
// DIR/cases.jsonl as soon as it is known, so that an interrupted drill can be resumed. At the end
// the lines are put into the order of the plan.
//
//   auto drill = run_drill({.plan = {{"drill_mlp"}, 200, 1}, .directory = "out", .threads = 2},
//                          &progress, &stop);
//   to_terminal(summarise(drill->records), {...});
#pragma once

#include "harness/drill/matrix.h"
#include "harness/drill/run_case.h"

namespace twinrun::drill {

struct DrillOptions {
  CasePlan plan;
  std::vector<std::string> ids;  // run these cases instead of the plan's
  std::string only;              // glob over kinds of faults and causes; "": all
  // For cases.jsonl, references/, and reports of wrong answers in cases/.
  std::string directory;
  bool resume = false;    // keep the records in cases.jsonl; otherwise start over
  bool keep_all = false;  // keep every case's report
  int threads = 1;
  // Only the cases whose place in the plan, modulo `shares`, is `share`.
  int64_t share = 0, shares = 1;
  std::function<void(Evidence&)> sabotage;  // for tests: DiagnoseOptions::sabotage
};

struct Drill {
  std::vector<CaseRecord> records;  // in the order of the plan
  bool interrupted = false;
};
Result<Drill> run_drill(const DrillOptions& options, Progress* progress, const StopFlag* stop);

// The scenarios of the library made for drills (drill_*), sorted by name.
std::vector<std::string> litmus_scenarios();

}  // namespace twinrun::drill
