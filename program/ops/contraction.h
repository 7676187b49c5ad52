// One form for dots, convolutions, their gradients and reductions: result (i, j) of part p is the
// sum over k of a(i, k) b(k, j). The index of an operand's element is the sum of an offset for its
// row and an offset for its k, so any panel of it can be gathered. Variants and faults of engines
// find the terms of a sum with it, and the hypotheses about wrong results; terms.h lists them one
// by one. Kernels, oracle and the tests' reference interpreter each have an index arithmetic of
// their own, so that a mistake in one of them shows.
//
//   const Contraction c = contraction_of(op, inputs);
//   c.a.at(p, i, k)                   // flat index into inputs[0]; -1: padding, a factor +0
//   without_k_tail(op, inputs, 32)    // operands for which the last 32 terms of each sum are 0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/base/tensor.h"
#include "program/ops/op.h"

namespace twinrun {

// How to index one operand. A Place is an offset and, for images, also pixel coordinates; the
// places of the row and of k are added.
class Side {
 public:
  struct Place {
    int64_t offset = 0, y = 0, x = 0;
  };
  std::vector<Place> rows, terms;
  int64_t part = 0;               // elements from one part to the next
  int64_t height = 1, width = 1;  // of the image
  // Only coordinates that are multiples of these are pixels, the rest are zeros: the input gradient
  // of a strided convolution.
  int64_t stride_y = 1, stride_x = 1;
  int64_t pixel = 0;  // elements from one pixel to the next

  int64_t at(int64_t p, int64_t row, int64_t k) const {
    const Place &r = rows[static_cast<size_t>(row)], &t = terms[static_cast<size_t>(k)];
    int64_t y = r.y + t.y, x = r.x + t.x;
    if (y < 0 || x < 0) return -1;
    if (stride_y > 1 || stride_x > 1) {
      if (y % stride_y != 0 || x % stride_x != 0) return -1;
      y /= stride_y, x /= stride_x;
    }
    if (y >= height || x >= width) return -1;
    return p * part + r.offset + t.offset + (y * width + x) * pixel;
  }
};

struct Contraction {
  Side a, b;
  int64_t parts = 1, m = 0, n = 0, k = 0;
  int64_t part_step = 0, row_step = 0;  // strides of the result; its columns are adjacent
  int64_t result(int64_t p, int64_t i, int64_t j) const { return p * part_step + i * row_step + j; }
};

// For dot_general, the convolutions and their gradients, and reduce. A reduction has m = 1 and no
// a.terms: its factor a is 1 everywhere. Parts are the matrices of a stack or the groups of a
// convolution.
Contraction contraction_of(const Op& op, std::span<const Tensor> inputs);

// The number of terms in the sum of one element, for the same ops. Taps in the padding count.
inline int64_t k_size(const Op& op, std::span<const Tensor> inputs) {
  return contraction_of(op, inputs).k;
}
// The operands of a dot or convolution, one of them changed so that the terms K - tail .. K - 1 of
// each sum multiply a zero.
std::vector<Tensor> without_k_tail(const Op& op, const std::vector<Tensor>& inputs, int64_t tail);

}  // namespace twinrun
