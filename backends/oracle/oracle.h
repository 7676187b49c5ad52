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
#include "backends/oracle/rounding.h"

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

// A tensor held against its bounds: how many elements are outside, and the worst one.
struct OracleVerdict {
  double worst = 0;                           // the largest oracle::ratio; > 1: outside the bound
  int64_t worst_element = -1;                 // its flat index
  double subject = 0, value = 0, radius = 0;  // at that element
  int64_t outside = 0;                        // number of elements outside
  int64_t untestable = 0;                     // number of elements with infinite radius
  int64_t elements = 0;

  // Counts an element with a finite radius. Elements come in ascending order.
  void note(int64_t i, double found, oracle::Estimate e, double ratio) {
    if (ratio > 1) ++outside;
    if (worst_element < 0 || ratio > worst)
      worst = ratio, worst_element = i, subject = found, value = e.value, radius = e.radius;
  }
  // Adds what was counted of later elements: of equally bad ones the first is kept.
  void add(OracleVerdict later) {
    later.outside += outside, later.untestable += untestable, later.elements += elements;
    if (later.worst_element >= 0 && (worst_element < 0 || later.worst > worst)) {
      *this = later;
    } else {
      outside = later.outside, untestable = later.untestable, elements = later.elements;
    }
  }
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
