// Dots and convolutions as binary64 matrix products. A Product describes where the rows of the left
// matrix come from (patches of an image are gathered chunk by chunk). Operands are split into
// planes (their bf16 parts), and evaluate() sums the passes of a precision. Eigen computes the
// products; the radius covers its order of addition.
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

// An allocator that leaves elements uninitialised, so that their memory is not touched before they
// are written. Its memory begins at a multiple of 64, because the order in which Eigen adds depends
// on the alignment.
struct Untouched : std::allocator<double> {
  template <typename>
  struct rebind {
    using other = Untouched;
  };
  double* allocate(size_t n) {
    return static_cast<double*>(::operator new (n * sizeof(double), std::align_val_t{64}));
  }
  void deallocate(double* at, size_t) { ::operator delete (at, std::align_val_t{64}); }
  template <typename... Args>
  void construct(double* at, Args... args) {
    if constexpr (sizeof...(args) > 0) ::new (static_cast<void*>(at)) double(args...);
  }
};
using Plane = std::vector<double, Untouched>;

// result[m, n] = sum over k of left[m, k] * right[k, n].
struct Product {
  enum class Left { kMatrix, kTransposed, kPatches, kGradientPatches } left = Left::kMatrix;
  // right is stored as [n, k] (dot) or [taps, n, k / taps] (input gradient).
  bool right_transposed = false;
  int64_t taps = 1;
  // Kernel gradient: the rows of the patches run along k, and left is their transpose.
  bool reduce_rows = false;
  int64_t m = 0, n = 0, k = 0;
  // The image [n, h, w, c] from which patches are gathered, and the grid [n, h, w] of the patches.
  int64_t in[4] = {}, out[4] = {};
  Window window;
};
Product product_of(const Op& op, std::span<const Tensor> inputs);

// Gathers rows [begin, end) of the left matrix from its tensor; `columns` is the matrix's width.
void gather_rows(const Product& product, int64_t columns, const double* from, int64_t begin,
                 int64_t end, double* to);
// Fixes Eigen's blocking, once per process and before the first product, so that results have the
// same bits on every machine.
void pin_blocking();

// An operand as the declared precision reads it, laid out as the tensor: one plane for f32 and bf16
// (its value), two (h, l) for bf16x3, three (h, m, l) for bf16x6. `magnitude` is the sum of the
// planes' absolute values; empty if there is only one plane.
struct Operand {
  std::vector<Plane> parts;
  Plane magnitude;
  double largest = 0;  // the largest finite magnitude
};
Operand split(const Tensor& t, DotPrecision precision, DotSplit how, bool flush, ThreadPool* pool);

// Row-major [m, n]. The value is head + rest, where a NaN in rest counts as 0. rest is empty for
// precisions with one pass.
struct Sums {
  Plane head;
  Plane rest;
  Plane magnitude;  // sum |a| |b|; empty if evaluate() was called with sizes = false
};
Sums evaluate(const Product& product, const Operand& a, const Operand& b, ThreadPool* pool,
              bool sizes = true);

}  // namespace twinrun::oracle
