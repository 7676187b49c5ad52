// A dot, a convolution, its gradients or a reduction as one thing: result (i, j) of part p is the sum over k of a(i, k) b(k, j).
// Where the operands of a term lie is a sum of what its row says and what its k says, so that engines can gather any panel.
//
//   const Contraction c = contraction_of(op, inputs);
//   c.a.at(p, i, k)                        // flat index into inputs[0]; -1: padding, a factor +0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "program/base/tensor.h"
#include "program/ops/op.h"

namespace twinrun::variants {

// One operand. A place is an offset, and a pixel of an image where there is one.
class Side {
 public:
  struct Place {
    int64_t offset = 0, y = 0, x = 0;
  };
  std::vector<Place> rows, terms;
  int64_t part = 0;               // from one part to the next
  int64_t height = 1, width = 1;  // of the image
  int64_t stride_y = 1,
          stride_x =
              1;      // only multiples of these are pixels: the gradient of a strided convolution
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
  int64_t part_step = 0, row_step = 0;  // of the result; columns are neighbours
  int64_t result(int64_t p, int64_t i, int64_t j) const { return p * part_step + i * row_step + j; }
};

// Of dot_general, the convolutions, and reduce, whose a is 1 everywhere (m = 1).
Contraction contraction_of(const Op& op, std::span<const Tensor> inputs);

}  // namespace twinrun::variants
