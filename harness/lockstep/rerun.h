// Runs a flagged step again on the subject, from the same state: is it wrong again, with the same
// bits? This also tells a conforming engine whose bits differ from run to run from a broken one.
// Follows the run that Lockstep observed.
//
//   auto r = rerun_flagged(*backend, program, probe.flagged(), probe.violations(), &pool);
//   r->violations        // the same, with persistence and counts
//   r->spread            // set if bits differed although every op was inside its bound
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/lockstep/violation.h"

namespace twinrun {

// A step as it began. `lead` is the step before it, where there was one and its state was small
// enough to keep: an engine may carry something from one step to the next (a stale buffer).
struct KeptStep {
  int64_t step = -1;
  States before;
  StepInputs inputs;
  std::optional<std::pair<States, StepInputs>> lead;
};

// A new engine that has already run the step before the kept one, so that whatever it carries over
// from one step to the next is present.
Result<std::unique_ptr<Engine>> engine_before(Backend& backend, const Program& program,
                                              const KeptStep& kept);

// Bits that differ between two runs of the same step.
struct RunSpread {
  int64_t step = 0;
  // The first op, in program order, whose bits differ although its operands are the same.
  std::string op;
  double relative = 0;  // distance between the states after the step, relative to their size
  std::string text() const;
};

struct Reruns {
  std::vector<Violation> violations;
  int64_t executions = 0;  // number of steps run
  std::optional<RunSpread> spread;
};

// Runs each kept step twice. Violations of other steps, and those that rest on several steps
// (kStatistic), are returned unchanged. Errors: the engine cannot be prepared, or fails.
Result<Reruns> rerun_flagged(Backend& backend, const Program& program,
                             std::span<const KeptStep> steps, std::vector<Violation> violations,
                             ThreadPool* pool);

}  // namespace twinrun
