// The screen: a cheap check of one op's result, for every op of every step. Its only outcome is
// "replay this op with the oracle" (backends/oracle/oracle.h), so its bounds need not be rigorous.
// Dots and convolutions have a checksum, all others are computed again by the kernels of
// backends/kernels, so that it costs O(inputs + outputs), not O(flops). An error of these kernels
// that the judged engine shares is for the replay of other steps to find: docs/method/bounds.md,
// "Screening".
//
//   if (!plausible(declared, op, inputs, output, pool))
//     judge(eval_op(declared, op, inputs, pool), output);
#pragma once

#include <span>

#include "backends/core/backend.h"

namespace twinrun {

// Whether a conforming engine of the declared arithmetic could have written `output`. If false,
// replay the op. For all_reduce the inputs are the contributions of all replicas. Ops that cannot
// be screened (parameter, anything of f64) are plausible.
bool plausible(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
               const Tensor& output, ThreadPool* pool, unsigned unrounded = 0);

}  // namespace twinrun
