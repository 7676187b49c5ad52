// Keeps the digests of a step on a healthy machine, and holds another machine's step against them.
//
//   TWINRUN_ASSIGN(const KnownStep known, know(trace, &again, pool));
//   const KnownVerdict v = verify_known(known, trace_of_here, pool);
#pragma once

#include "harness/trace/judge_trace.h"
#include "reports/known.h"

namespace twinrun {

// `again`: a second recording of the same step; what it does not repeat is never compared. Errors:
// a call of the step is outside its bounds here, so that this machine is none to hold others
// against; the second recording is of other calls.
Result<KnownStep> know(const TraceFile& trace, const TraceFile* again, ThreadPool* pool,
                       const StopFlag* stop = nullptr, Progress* progress = nullptr);

// Judges only where bits differ.
KnownVerdict verify_known(const KnownStep& known, const TraceFile& trace, ThreadPool* pool,
                          const StopFlag* stop = nullptr, Progress* progress = nullptr);

}  // namespace twinrun
