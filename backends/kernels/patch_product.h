// The products of convolution and its input gradient: C = patches times B, patches being read from slabs (image_view.h).
// Called by convolution.cc.
//
//   multiply_patches(plan, {geometry, images, weights, channels_out, c}, terms, zeros_can_be_left_out(..));
//
// Products with padding are terms of the contract's chains: +0 times a weight. Leaving out such a term, the weight being
// finite, changes a chain in one way only, the sign of a zero, and if the full chain ends in -0, so does the short one.
// So: finite weights, in bf16 blocks of 32 k that hold whole taps, and no -0 in the result; else all terms. Of a 5 x 5
// kernel over 14 x 14 pixels they are every sixth product, of the input gradient of one without padding two of five.
#pragma once

#include <cstdint>

#include "backends/kernels/gemm.h"
#include "backends/kernels/image_view.h"

namespace twinrun {

struct PatchProblem {
  const PatchGeometry& g;
  const float* images;
  MatrixB b;  // [kh, kw, channel] by n
  int64_t n;
  float* c;  // [images, out pixels, n]
};

bool zeros_can_be_left_out(const GemmPlan& plan, int64_t channels, const float* weights,
                           int64_t count);

// One pass; `leave_out_zeros` as zeros_can_be_left_out says of these weights.
void multiply_patches(const GemmPlan& plan, const PatchProblem& problem, Terms terms,
                      bool leave_out_zeros);

}  // namespace twinrun
