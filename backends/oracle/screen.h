// A cheap look at one op's result, for every op of every step: its only outcome is "replay this one
// with the oracle" (backends/oracle/oracle.h), so it needs no verdict-grade bound. O(inputs + outputs),
// not O(flops): docs/bounds.md, "Screening".
//
//   if (!plausible(declared, op, inputs, output, pool)) judge(eval_op(declared, op, inputs, pool),
//   output);
#pragma once

#include <span>

#include "backends/core/backend.h"

namespace twinrun {

// Could an honest engine of the declared arithmetic have written `output`? false: worth a replay.
// For all_reduce the inputs are the contributions of all replicas. Ops that can't be screened
// (parameter, anything of f64) are plausible.
bool plausible(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
               const Tensor& output, ThreadPool* pool, unsigned unrounded = 0);

}  // namespace twinrun
