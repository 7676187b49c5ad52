// Finds what two sides should have had alike and did not: batches, initial weights, random draws,
// numbers among the arguments, types. What earlier differences explain is not told.
#pragma once

#include <vector>

#include "harness/trace/align.h"
#include "reports/two_sides.h"

namespace twinrun {

struct Sides {
  const TraceFile &trace_a, &trace_b;
  const TraceValues &a, &b;
  const Alignment& aligned;
  const std::vector<ViewDifference>& differences;  // one for each pair; nothing where bits agree
};
// Whether every call was recorded; before PyTorch 1.13 some are not.
bool sees_all(const TraceFile& trace);
SideCall side_of(const aten::Call& call);
// Whether both calls read the same bits, in any order.
bool same_reads(const Sides& sides, const aten::Call& a, const aten::Call& b);
std::vector<OtherInput> other_inputs(const Sides& sides);

}  // namespace twinrun
