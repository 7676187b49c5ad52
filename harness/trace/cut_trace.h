// A trace of a few calls of another: what a filing needs of a recording, and nothing else of the
// script.
//
//   TWINRUN_ASSIGN(const std::string small, cut_trace(trace, {40}));   // bytes of a *.twin
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "harness/trace/trace_file.h"

namespace twinrun {

// `calls`: their numbers, in order. The numbers are counted anew from 0, the step is 0, and a
// backward call no longer names its forward call. Strings and blocks of data that these calls do not
// use are left out; graphs of compiled regions stay, with their strings, if a call is a region.
// Errors: no such call; bytes of a call were left out of the trace.
Result<std::string> cut_trace(const TraceFile& trace, const std::vector<int64_t>& calls);

}  // namespace twinrun
