// Judges every call of a trace: its results against what the call is defined to compute on its own
// recorded inputs, in binary64 with bounds (backends/aten/). What has no definition is listed.
//
//   const TraceVerdict v = judge_trace(trace, pool, &stop, &progress);
//   v.findings;   // earliest first
#pragma once

#include "harness/host/progress.h"
#include "harness/trace/trace_file.h"
#include "program/base/thread_pool.h"
#include "reports/trace_verdict.h"

namespace twinrun {

TraceVerdict judge_trace(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop = nullptr,
                         Progress* progress = nullptr);

}  // namespace twinrun
