// Image patches as rows of a matrix, without building the matrix. A slab is a copy of some image
// rows with the border (and, for an input gradient, the zeros between strides) written out, so that
// every tap of every output is plain address arithmetic. Used by the convolution kernels; read by
// the tiles of gemm_micro.h.
//
//   const PatchGeometry g = forward_geometry(x_dims, kh, kw, window);
//   copy_slab(g, term, x, n, y0, y1, poison, slab);  // what output rows [y0, y1) of image n read
//   slab[g.position(y - y0, x) + g.tap(i, j) + c]    // the operand of tap (i, j), channel c
#pragma once

#include <cstdint>
#include <vector>

#include "backends/kernels/gemm.h"
#include "program/ops/op.h"

namespace twinrun {

struct PatchGeometry {
  int64_t images, height, width, channels;  // of the tensor that is read
  int64_t taps[2];                          // kh, kw
  int64_t out[2];                           // output rows and columns
  int64_t step[2];                          // from an output to the next, in slab rows and columns
  int64_t tap_step[2];  // from a tap to the next: negative for an input gradient
  int64_t first[2];     // slab coordinate of output 0 at tap 0
  int64_t spread[2];    // the tensor's row r lies in slab row low + r * spread
  int64_t low[2];
  int64_t columns;  // slab columns
  int64_t pitch;    // floats from a pixel to the next

  int64_t position(int64_t y, int64_t x) const {
    return ((first[0] + y * step[0]) * columns + first[1] + x * step[1]) * pitch;
  }
  int64_t tap(int64_t i, int64_t j) const {
    return (i * tap_step[0] * columns + j * tap_step[1]) * pitch;
  }
  int64_t slab_rows(int64_t outputs) const {
    const int64_t reach = (taps[0] - 1) * (tap_step[0] < 0 ? -tap_step[0] : tap_step[0]);
    return (outputs - 1) * step[0] + reach + 1;
  }
  int64_t slab_size(int64_t outputs) const { return slab_rows(outputs) * columns * pitch; }
  // Whether the tensor itself can serve as the slab, so that nothing has to be copied.
  bool in_place() const;
};

// The patches of a forward convolution over x [n,h,w,c].
PatchGeometry forward_geometry(const Dims& x, int64_t kh, int64_t kw, const Window& window);
// The patches of its input gradient over dy [n,oh,ow,co]; outputs are the pixels of x.
PatchGeometry input_grad_geometry(const Dims& dy, const Dims& x, int64_t kh, int64_t kw,
                                  const Window& window);

// Adjacent outputs [begin, end) along an axis (0: rows) whose taps inside the image are [tap0,
// tap1); their other taps meet padding.
struct Span {
  int64_t begin, end;
  int64_t tap0, tap1;
};
// All outputs of an axis, in order. Empty where there are zeros between strides or an output that
// meets padding alone.
std::vector<Span> spans_of(const PatchGeometry& g, int axis);

void copy_slab(const PatchGeometry& g, Term term, const float* data, int64_t image, int64_t y0,
               int64_t y1, bool poison, float* slab);

}  // namespace twinrun
