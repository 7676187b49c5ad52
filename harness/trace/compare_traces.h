// Compares two traces of one script: the first result that differs, whose bounds it leaves, and
// whether both sides got the same inputs. Each side is judged by its own recorded inputs, so no
// tolerance between the sides decides.
//
//   const TwoSides both = compare_traces(a, b, pool, &stop, &progress);
//   both.verdict, both.side, both.first
#pragma once

#include "harness/trace/judge_trace.h"
#include "reports/two_sides.h"

namespace twinrun {

TwoSides compare_traces(const TraceFile& a, const TraceFile& b, ThreadPool* pool,
                        const StopFlag* stop = nullptr, Progress* progress = nullptr);

}  // namespace twinrun
