// The subject of a case: an honest variant, what is injected into it, and around both what counts its runs or withholds its ops.
//
//   SubjectMaker make(c, experiment, log, usage);
//   diagnose(scenario, {.make_subject = make}, ...);      // a Backend like any other
#pragma once

#include <atomic>
#include <memory>

#include "backends/faults/faulty_backend.h"
#include "harness/drill/drill_case.h"

namespace twinrun::drill {

// What a diagnosis asked of the subject.
struct Usage {
  std::atomic<int> executions = 0;  // engines that ran a step or more
  std::atomic<int64_t> steps = 0;
};

std::unique_ptr<Backend> counted(std::unique_ptr<Backend> backend, std::shared_ptr<Usage> usage);
// Level C: offers no op trace, and shows none.
std::unique_ptr<Backend> without_trace(std::unique_ptr<Backend> backend);

// The honest engine of a case: its variant, at the scenario's precision.
Result<std::unique_ptr<Backend>> honest_engine(const DrillCase& c, const BackendOptions& options);
// The same engine, but secretly running the program of the case's hidden cause; as it is where the case has none.
std::unique_ptr<Backend> with_hidden_program(std::unique_ptr<Backend> engine, const DrillCase& c,
                                             const Experiment& experiment);
// The honest engine with the case's fault and the case's other program, as far as it has them.
Result<std::unique_ptr<Backend>> injected_engine(const DrillCase& c, const Experiment& experiment,
                                                 const BackendOptions& options,
                                                 std::shared_ptr<FaultLog> log);

}  // namespace twinrun::drill
