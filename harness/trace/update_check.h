// Whether the updates of a recorded step are the published formulas of their optimizers. The calls of
// an optimizer are evaluated again in binary64 (again.h), on the recorded weights, gradients and
// state; the formula (formulas.h) is evaluated on the same numbers. What is left between the two is no
// rounding of the step's types. docs/method/calls.md#the-update
#pragma once

#include "harness/host/progress.h"
#include "harness/trace/trace_file.h"
#include "program/base/thread_pool.h"
#include "reports/trace_verdict.h"

namespace twinrun {

UpdateCheck check_updates(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop);

}  // namespace twinrun
