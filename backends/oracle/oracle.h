// cpu:f64 as the judge: the value of one op in binary64 on the subject's own inputs, and how far an honest engine of the declared
// arithmetic may be from it. Derivations: docs/bounds.md. No verdict depends on libm.
//
//   OracleResult r = eval_op(capabilities, op, inputs);         // inputs: the tensors that the subject read
//   |subject[i] - r.value[i]| <= r.radius[i]                    // for every honest engine
//   replay(capabilities, op, inputs, subject, pool).outside     // how often it does not hold
#pragma once

#include <span>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun {

struct OracleResult {
  std::vector<double>
      value;  // of every output element; NaN and infinities as binary32 arithmetic would give
  std::vector<double>
      radius;  // >= 0; infinity: untestable; 0: bits must be equal (moves, integers, predicates)
};

// One op on one replica. For all_reduce the inputs are the contributions of all replicas.
// `unrounded` is what unrounded_operands (backend.h) says of the op in its program.
// Operands of dots are first rounded exactly as `declared.precision` says; the radius then covers accumulation only.
OracleResult eval_op(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                     ThreadPool* pool, unsigned unrounded = 0);

// The values alone: binary64; integers and predicates as themselves.
Tensor eval_value(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                  ThreadPool* pool);

// The largest |subject - value| / radius over elements, and where. Elements with NaN or Inf on exactly one side count as
// infinite; equal infinities and NaN on both sides as 0.
struct OracleVerdict {
  double worst = 0;                           // > 1: outside
  int64_t worst_element = -1;                 // flat index
  double subject = 0, value = 0, radius = 0;  // there
  int64_t outside = 0;                        // number of elements outside
  int64_t untestable = 0;                     // infinite radius
  int64_t elements = 0;
};
OracleVerdict judge(const OracleResult& oracle, const Tensor& subject, ThreadPool* pool = nullptr);

// judge(eval_op(...)), without keeping values and radii where an op allows it.
OracleVerdict replay(const Capabilities& declared, const Op& op, std::span<const Tensor> inputs,
                     const Tensor& subject, ThreadPool* pool, unsigned unrounded = 0);

// Size of the rounding of operands itself, which the radius leaves out: root mean square of (subject - f64 value on unrounded
// operands) over root mean square of sqrt(sum (a*b)^2). About 2^-9 for bf16 operands. Dots and convolutions only.
double operand_residual(const Op& op, std::span<const Tensor> inputs, const Tensor& subject,
                        ThreadPool* pool);

}  // namespace twinrun
