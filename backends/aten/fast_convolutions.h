// The rounding errors of convolutions by Winograd's and by Fourier's algorithm. They transform tiles
// of the input, so that an element errs by what all inputs of its tile make up, also where its own
// patch or weights are zeros.
#pragma once

#include "backends/aten/array.h"

namespace twinrun::aten {

// A convolution over two dimensions without dilation.
struct FastLayer {
  int64_t kernel[2], pad[2], stride[2];  // height, width
  int64_t groups = 1;
};

// What NNPACK may err by where it takes tiles of 8 x 8 or 16 x 16: Winograd's F(6x6, 3x3) for kernels
// of 3 x 3, else transforms of Fourier. x [n, ci, h, w], w [co, ci / groups, kh, kw]; the result has
// the dimensions `result`, [n, co, oh, ow].
Array nnpack_errors(const Arithmetic& m, const Array& x, const Array& w, const FastLayer& layer,
                    const Dims& result);

// What Fourier's algorithm errs by whose tile is the whole sample: [n, co]. x [n, ci, ..], w
// [co, ci / groups, ..].
Array whole_sample_errors(const Arithmetic& m, const Array& x, const Array& w, int64_t groups);
// The same of the gradient of w [co, ci / groups] by x [n, ci, ..] and dy [n, co, ..].
Array whole_sample_errors_of_weights(const Arithmetic& m, const Array& x, const Array& dy,
                                     int64_t groups);

// The bias, which is added before the last transform, takes part in its roundings: relative to it.
double fast_bias_error(const Arithmetic& m);

}  // namespace twinrun::aten
