// Judges every call of a trace: its results against what the call is defined to compute on its own
// recorded inputs, in binary64 with bounds (backends/aten/). What has no definition is listed.
//
//   const TraceVerdict v = judge_trace(trace, pool, &stop, &progress);
//   v.findings;   // earliest first
#pragma once

#include <functional>

#include "backends/aten/array.h"
#include "backends/oracle/oracle.h"
#include "harness/host/progress.h"
#include "harness/trace/trace_file.h"
#include "program/base/thread_pool.h"
#include "reports/trace_verdict.h"

namespace twinrun {

// A result that was compared with what the call is defined to give.
struct JudgedResult {
  const aten::Call& call;
  const aten::TensorView& actual;
  const aten::Array& expected;
  const OracleVerdict& held;
  // Euclidean norms over the elements that have finite bounds and values.
  double expected_norm = 0, bound_norm = 0;
  bool on_path = false;  // an update depends on the call (flow.h)
};
using SeeResult = std::function<void(const JudgedResult&)>;

TraceVerdict judge_trace(const TraceFile& trace, ThreadPool* pool, const StopFlag* stop = nullptr,
                         Progress* progress = nullptr, const SeeResult& see = {});

}  // namespace twinrun
