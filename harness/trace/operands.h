// Describes the arguments of a call as far as they explain one element of a result: what stands at
// its index, the row and the column of a product, and the range of all values.
//
//   operands_of(call, {24, 32}, 0, 103, pool);
//       // {"argument 1", "float32[24, 64]", "row 3: 0.5, -1.25, … (64 values); all from -2 to 2"}
#pragma once

#include <vector>

#include "backends/aten/call.h"
#include "program/base/thread_pool.h"
#include "reports/trace_verdict.h"

namespace twinrun {

// `flat`: the element of the result `which`, whose sizes are `dims`.
std::vector<CallOperand> operands_of(const aten::Call& call, const Dims& dims, size_t which,
                                     int64_t flat, ThreadPool* pool);

}  // namespace twinrun
