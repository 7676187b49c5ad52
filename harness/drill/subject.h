// The subject of a case: a conforming variant with the case's fault or program, wrapped to count
// its runs or to withhold its ops.
//
//   auto subject = injected_engine(c, experiment, options, log);
//   auto backend = counted(without_trace(std::move(*subject)), usage);   // a plain Backend
#pragma once

#include <atomic>
#include <memory>

#include "backends/faults/faulty_backend.h"
#include "harness/drill/drill_case.h"

namespace twinrun::drill {

// How much a diagnosis used the subject.
struct Usage {
  std::atomic<int> executions = 0;  // engines that ran at least one step
  std::atomic<int64_t> steps = 0;
};

std::unique_ptr<Backend> counted(std::unique_ptr<Backend> backend, std::shared_ptr<Usage> usage);
// For level C: declares no op trace, and delivers none.
std::unique_ptr<Backend> without_trace(std::unique_ptr<Backend> backend);

// The conforming engine of a case: its variant, at the scenario's precision.
Result<std::unique_ptr<Backend>> conforming_engine(const DrillCase& c,
                                                   const BackendOptions& options);
// The same engine, but secretly running the program of the case's hidden cause; unchanged where the
// case has none.
std::unique_ptr<Backend> with_hidden_program(std::unique_ptr<Backend> engine, const DrillCase& c,
                                             const Experiment& experiment);
// The conforming engine with the case's fault and with its other program, where it has them.
Result<std::unique_ptr<Backend>> injected_engine(const DrillCase& c, const Experiment& experiment,
                                                 const BackendOptions& options,
                                                 std::shared_ptr<FaultLog> log);

}  // namespace twinrun::drill
