// Copies of weights that a step's gradient goes through although an optimizer has changed the weight
// since: a cast that was kept, such as the cache of one autocast region around the whole loop.
#pragma once

#include "harness/trace/trace_file.h"
#include "reports/trace_verdict.h"

namespace twinrun {

StaleReads stale_reads(const TraceFile& trace);

}  // namespace twinrun
