// A flagged step once more, on the subject, from the same state: is it wrong again, in the same bits? And an honest engine whose
// bits differ from run to run, told from a broken one.
//
//   auto r = rerun_flagged(*backend, program, probe.flagged(), probe.violations(), &pool);
//   r->violations        // the same, with persistence and counts
//   r->spread            // set if bits differed between runs although every op was inside its bound
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backends/core/backend.h"
#include "harness/lockstep/violation.h"

namespace twinrun {

// A step as it began. An engine may carry something from one step to the next (a stale buffer), so the step before it is
// kept, too, where there was one.
struct KeptStep {
  int64_t step = -1;
  States before;
  StepInputs inputs;
  std::optional<std::pair<States, StepInputs>> lead;
};

// A new engine, taken through the step before, so that whatever it carries over to the kept one is there.
Result<std::unique_ptr<Engine>> engine_before(Backend& backend, const Program& program,
                                              const KeptStep& kept);

// Bits that differ between two runs of one step.
struct RunSpread {
  int64_t step = 0;
  std::string
      op;  // the first op, in program order, whose bits differ although its operands are the same
  double relative = 0;  // distance of the states after the step, relative to their size
  std::string text() const;
};

struct Reruns {
  std::vector<Violation> violations;
  int64_t executions = 0;  // steps run
  std::optional<RunSpread> spread;
};

// Two runs of each kept step. Violations of other steps, and those that rest on several steps, are left as they are.
Result<Reruns> rerun_flagged(Backend& backend, const Program& program,
                             std::span<const KeptStep> steps, std::vector<Violation> violations,
                             ThreadPool* pool);

}  // namespace twinrun
