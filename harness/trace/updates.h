// How differently two sides move the parameters: the updates of each step, compared.
//
//   for (const UpdateDifference& u : compare_updates(trace_a, trace_b)) u.relative;
#pragma once

#include <cstdint>
#include <vector>

#include "harness/trace/trace_file.h"

namespace twinrun {

struct UpdateDifference {
  int32_t step = 0;
  int64_t parameters = 0;  // that were found on both sides
  // The Euclidean norm of the difference of both updates of all parameters, over the larger norm of
  // the two.
  double relative = 0;
};
// Parameters are known by their first values; those that begin differently are left out.
std::vector<UpdateDifference> compare_updates(const TraceFile& a, const TraceFile& b);

}  // namespace twinrun
