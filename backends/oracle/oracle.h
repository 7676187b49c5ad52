// cpu:f64 as the judge: computes the value of one op in binary64 on the subject's own inputs, and a
// bound (radius) on how far a conforming engine of the declared arithmetic may be from it.
// docs/method/bounds.md has the derivations. No verdict depends on libm.
//
//   OracleResult r = eval_op(capabilities, op, inputs, pool);   // inputs: what the subject read
//   |subject[i] - r.value[i]| <= r.radius[i]                    // for every conforming engine
//   replay(capabilities, op, inputs, subject, pool).outside     // how many elements violate it
#pragma once

#include <span>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

struct OracleResult {
  // One per output element; NaN and infinities as binary32 arithmetic would give them.
  std::vector<double> value;
  // >= 0. Infinity: untestable. 0: must be the same number (moves, integers, predicates).
  std::vector<double> radius;
};

// Evaluates one op on one replica. For all_reduce the inputs are the contributions of all replicas.
// `unrounded` is the result of unrounded_operands (backend.h) for the op in its program. Operands
// of dots are first rounded exactly as `declared.precision` says, so the radius covers accumulation
// only.
OracleResult eval_op(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                     ThreadPool* pool, unsigned unrounded = 0);

// The values only, in binary64; integers and predicates keep their dtype.
Tensor eval_value(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                  ThreadPool* pool);

// The largest ratio |subject - value| / radius over all elements, and where it occurs. A NaN or
// infinity on one side only counts as an infinite ratio; equal infinities, or NaN on both sides, as
// 0.
struct OracleVerdict {
  double worst = 0;                           // the largest ratio; > 1: outside the bound
  int64_t worst_element = -1;                 // its flat index
  double subject = 0, value = 0, radius = 0;  // at that element
  int64_t outside = 0;                        // number of elements outside
  int64_t untestable = 0;                     // number of elements with infinite radius
  int64_t elements = 0;
};
OracleVerdict judge(const OracleResult& oracle, const Tensor& subject, ThreadPool* pool = nullptr);

// The same as judge(eval_op(...)), without storing all values and radii where an op allows that.
OracleVerdict replay(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                     const Tensor& subject, ThreadPool* pool, unsigned unrounded = 0);

// The size of the rounding of operands, which the radius leaves out: root mean square of (subject -
// f64 value on unrounded operands) over root mean square of sqrt(sum (a*b)^2). About 2^-9 for bf16
// operands. Dots and convolutions only.
double operand_residual(const Op& op, std::span<const Tensor> inputs, const Tensor& subject,
                        ThreadPool* pool);

}  // namespace twinrun
