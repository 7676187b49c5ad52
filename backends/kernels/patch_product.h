// The products of convolution and its input gradient: C = patches times B, where patches are read
// from slabs (image_view.h). Called by convolution.cc.
//
//   const bool leave_out = zeros_can_be_left_out(plan, channels, weights, count);
//   multiply_patches(plan, {geometry, images, b, channels_out, c}, terms, leave_out);
//
// Products with padding, +0 times a weight, are terms of the contract's chains. Leaving out such a
// term, where the weight is finite, can change only the sign of a zero; and if the full chain ends
// in -0, so does the shortened one. Terms are therefore left out if the weights are finite, if (for
// bf16) every block of 32 k lies within one tap, and if no result is -0; otherwise all terms are
// computed. These terms are one product in six of a 5 x 5 kernel over 14 x 14 pixels, and two in
// five of the input gradient of one without padding.
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

// Computes one pass. `leave_out_zeros` is what zeros_can_be_left_out returns for these weights.
void multiply_patches(const GemmPlan& plan, const PatchProblem& problem, Terms terms,
                      bool leave_out_zeros);

}  // namespace twinrun
