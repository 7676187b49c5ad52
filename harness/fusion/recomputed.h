// Whether an op of a traced module, whose result lies outside of what the operands allow that the
// engine returned, is explained by a compiler that computed these operands again inside of a
// fusion, with other roundings than those that it returned. Both are legal. Instrument 1 cannot
// know it; this asks for every legal result from values farther upstream.
//
//   TWINRUN_ASSIGN(const TracedStep traced, TracedStep::of(*engine, kept));
//   TWINRUN_ASSIGN(bool legal, traced.explains(program, declared, violation.id, 0, &pool));
#pragma once

#include <vector>

#include "backends/radii/radii.h"
#include "harness/lockstep/rerun.h"

namespace twinrun {

class TracedStep {
 public:
  // Runs a step with a trace and keeps the values of all its ops.
  static Result<TracedStep> of(Engine& engine, const KeptStep& kept);
  // Whether the replica's result of this op lies within everything that a compiler may make of the
  // values of ops up to some distance upstream. Collectives and random numbers are not computed
  // again.
  Result<bool> explains(const Program& program, const Capabilities& declared, ValueId id,
                        size_t replica, ThreadPool* pool) const;

 private:
  KeptStep kept_;
  std::vector<std::vector<Tensor>> values_;  // [replica][value]
};

}  // namespace twinrun
