// Whether two recorded steps mean the same gradient: the first step of both sides is evaluated again
// in binary64 (again.h), from its own weights and batch, up to the gradients that the optimizer reads.
// No rounding of the steps' own types is left, so micro-batches and the joined batch, or two formulas
// of one loss, agree to many digits or mean something else. docs/guides/pytorch.md#two-ways-to-say-it
//
//   const MeantGradients m = compare_gradients(a, b, pool, &stop);
//   m.relative, m.sentence()     // or m.why, why it could not be evaluated
#pragma once

#include "harness/host/progress.h"
#include "harness/trace/trace_file.h"
#include "program/base/thread_pool.h"
#include "reports/two_sides.h"

namespace twinrun {

MeantGradients compare_gradients(const TraceFile& a, const TraceFile& b, ThreadPool* pool,
                                 const StopFlag* stop);

}  // namespace twinrun
