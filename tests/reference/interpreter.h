// The second interpreter: the numeric contract (docs/method/numerics.md, program/ops/op.h) written
// as the most naive scalar loops, sharing no code with backends/kernels. Tests compare the kernels
// with it, so that a mistake in either one shows.
//
//   using Dot = ReferenceArithmetic::Dot;
//   Tensor want = reference_op(op, inputs, {.dot = Dot::kBf16, .flush = true});
#pragma once

#include <span>

#include "program/base/tensor.h"
#include "program/ops/op.h"

namespace twinrun {

struct ReferenceArithmetic {
  enum class Dot : uint8_t { kF32, kBf16, kBf16x3, kBf16x6 } dot = Dot::kF32;
  bool flush = false;
};

// Computes an op of any kind but parameter and all_reduce; the result has op.type. Unsupported
// combinations throw std::logic_error.
Tensor reference_op(const Op& op, std::span<const Tensor> inputs, ReferenceArithmetic arithmetic);

// The ring sum of contract rule 7 over the contributions of N >= 1 replicas.
Tensor reference_all_reduce(std::span<const Tensor> contributions, ReferenceArithmetic arithmetic);

// The mathematical function rounded to nearest even in binary32, computed by MPFR.
float reference_exp(float x, bool flush);
float reference_log(float x, bool flush);
float reference_tanh(float x, bool flush);
float reference_erf(float x, bool flush);
float reference_log1p(float x, bool flush);
float reference_sin(float x, bool flush);
float reference_cos(float x, bool flush);

}  // namespace twinrun
