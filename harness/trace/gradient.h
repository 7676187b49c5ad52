// Whether the backward pass of a recorded step is the derivative of the loss that its forward pass
// computed. Both are evaluated again in binary64 (again.h), so no rounding of the step's own types is
// left: the loss is moved along directions by differences, and compared with the gradient. Where they
// differ, the backward pass is followed from the loss to the first node whose result is no derivative.
// docs/method/calls.md#the-gradient
#pragma once

#include "harness/host/progress.h"
#include "harness/trace/trace_file.h"
#include "program/base/thread_pool.h"
#include "reports/trace_verdict.h"

namespace twinrun {

GradientCheck check_gradient(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop);

}  // namespace twinrun
