// Dots and convolutions as binary64 matrix products. A Product says where the rows of the left
// matrix come from (patches of an image are gathered chunk by chunk), operands are split into
// planes (the bf16 parts of an operand), and evaluate() sums the passes of a scheme. Eigen does the
// products; its order of addition is inside the radius.
//
//   Sums s = evaluate(product_of(op, inputs), split(a, ..., pool), split(b, ..., pool), pool);
#pragma once

#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <vector>

#include "backends/core/backend.h"

namespace twinrun::oracle {

// Numbers whose memory is not touched before they are written.
struct Untouched : std::allocator<double> {
  template <typename>
  struct rebind {
    using other = Untouched;
  };
  template <typename... Args>
  void construct(double* at, Args... args) {
    if constexpr (sizeof...(args) > 0) ::new (static_cast<void*>(at)) double(args...);
  }
};
using Plane = std::vector<double, Untouched>;

// result[m, n] = sum over k of left[m, k] * right[k, n]
struct Product {
  enum class Left { kMatrix, kTransposed, kPatches, kGradientPatches } left = Left::kMatrix;
  bool right_transposed =
      false;  // right is stored [n, k] (dot) or [taps, n, k / taps] (input gradient)
  int64_t taps = 1;
  bool reduce_rows =
      false;  // kernel gradient: the rows of the patches are k; left is their transpose
  int64_t m = 0, n = 0, k = 0;
  int64_t in[4] = {},
          out[4] = {};  // image [n, h, w, c] that is gathered from; grid [n, h, w] of the patches
  Window window;
};
Product product_of(const Op& op, std::span<const Tensor> inputs);

// Rows [begin, end) of the left matrix, gathered from its tensor; `columns` is its width.
void gather_rows(const Product& product, int64_t columns, const double* from, int64_t begin,
                 int64_t end, double* to);
// Once per process, before anything is multiplied: blocking that is the same on every machine.
void pin_blocking();

// An operand as the declared precision reads it: one plane for f32 and bf16 (its value), two (h, l)
// for bf16x3, three (h, m, l) for bf16x6, laid out as the tensor; `magnitude` = the sum of their
// sizes.
struct Operand {
  std::vector<Plane> parts;
  Plane magnitude;
  double largest = 0;  // finite magnitude
};
Operand split(const Tensor& t, DotPrecision precision, DotSplit how, bool flush, ThreadPool* pool);

// Row-major [m, n]. Value = head + (NaN -> 0)(rest); rest is empty for one-pass schemes.
struct Sums {
  Plane head;
  Plane rest;
  Plane magnitude;  // sum |a| |b|; empty where sizes are not asked for
};
Sums evaluate(const Product& product, const Operand& a, const Operand& b, ThreadPool* pool,
              bool sizes = true);

}  // namespace twinrun::oracle
