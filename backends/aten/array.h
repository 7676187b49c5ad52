// Arrays of estimates: binary64 values with a radius each, and the operations on whole arrays from
// which definitions are composed. Dimensions broadcast as in PyTorch.
//
//   Array y = map(m, [&](Estimate a, Estimate b) { return m.add(a, b); }, x, bias);
//   Array s = sum(m, y, {1}, /*keep=*/true);
#pragma once

#include <cassert>
#include <utility>
#include <vector>

#include "backends/aten/arithmetic.h"
#include "backends/oracle/gemm.h"
#include "program/base/types.h"

namespace twinrun::aten {

using Plane = Checked<double, oracle::Plane::allocator_type>;

// The product of the sizes. Undefined if it overflows, or would without sizes of 0: products of some
// of the sizes that an array has never do.
int64_t count(const Dims& dims);
// The same; Undefined too if an array may not have so many elements (ArraysOfAtMost).
int64_t allowed_count(const Dims& dims);

struct Array {
  Dims dims;
  Plane value;
  Plane radius;  // empty: every element is exact

  int64_t size() const { return static_cast<int64_t>(value.size()); }
  bool exact() const { return radius.empty(); }
  Estimate at(int64_t i) const {
    const auto u = static_cast<size_t>(i);
    return {value[u], radius.empty() ? 0.0 : radius[u]};
  }
  void set(int64_t i, Estimate e) {
    value[static_cast<size_t>(i)] = e.value;
    radius[static_cast<size_t>(i)] = e.radius;
  }
};

// As long as it lives, an array of this thread with more elements is Undefined, and so are more steps
// than take_steps() gives.
class ArraysOfAtMost {
 public:
  explicit ArraysOfAtMost(int64_t elements);
  ~ArraysOfAtMost();
  ArraysOfAtMost(const ArraysOfAtMost&) = delete;
  ArraysOfAtMost& operator=(const ArraysOfAtMost&) = delete;

 private:
  int64_t before_;
  double steps_before_, steps_;
};
// Undefined where all steps together are many more than a call takes that was recorded whole, each of
// whose results is computed from all numbers that were recorded at most. A multiplication in a
// product of matrices counts as one, another operation on estimates as kStepsOfOne.
void take_steps(double steps);
constexpr double kStepsOfOne = 8;

Array empty_array(Dims dims, bool exact = false);
Array filled(Dims dims, double value);  // exact
Array scalar(double value);             // exact, no dimensions

// The dimension counted from the end if it is negative; Undefined (definitions.h) if out of range.
int64_t axis_of(int64_t dim, int64_t rank);
Dims broadcast_dims(const Dims& a, const Dims& b);
Array broadcast(const Array& x, const Dims& dims);

// Calls f for ranges that make up [0, n), on the pool if there is one.
void in_ranges(const Arithmetic& m, int64_t n, const std::function<void(int64_t, int64_t)>& f);

// Elementwise, of one to four arrays that broadcast with each other; f takes and gives estimates.
template <typename F>
Array map(const Arithmetic& m, F f, const Array& a) {
  Array out = empty_array(a.dims);
  in_ranges(m, a.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out.set(i, f(a.at(i)));
  });
  return out;
}
// Where element i of the result reads an operand: flat, or 0 for a scalar; other operands are
// broadcast first.
class Operand {
 public:
  Operand(const Array& x, const Dims& dims) : size_(x.size()) {
    if (x.dims != dims && x.size() != 1) {
      own_ = broadcast(x, dims);
      array_ = &own_;
      size_ = own_.size();
    } else {
      array_ = &x;
    }
  }
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;
  Estimate operator[](int64_t i) const { return array_->at(size_ == 1 ? 0 : i); }

 private:
  Array own_;
  const Array* array_;
  int64_t size_;
};
template <typename F>
Array map(const Arithmetic& m, F f, const Array& a, const Array& b) {
  Array out = empty_array(broadcast_dims(a.dims, b.dims));
  const Operand x(a, out.dims), y(b, out.dims);
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out.set(i, f(x[i], y[i]));
  });
  return out;
}
template <typename F>
Array map(const Arithmetic& m, F f, const Array& a, const Array& b, const Array& c) {
  Array out = empty_array(broadcast_dims(broadcast_dims(a.dims, b.dims), c.dims));
  const Operand x(a, out.dims), y(b, out.dims), z(c, out.dims);
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out.set(i, f(x[i], y[i], z[i]));
  });
  return out;
}
template <typename F>
Array map(const Arithmetic& m, F f, const Array& a, const Array& b, const Array& c,
          const Array& d) {
  Array out =
      empty_array(broadcast_dims(broadcast_dims(a.dims, b.dims), broadcast_dims(c.dims, d.dims)));
  const Operand x(a, out.dims), y(b, out.dims), z(c, out.dims), w(d, out.dims);
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) out.set(i, f(x[i], y[i], z[i], w[i]));
  });
  return out;
}

// Moves: the same elements, with their radii.
Array reshaped(Array x, Dims dims);
Array permuted(const Array& x, const Dims& order);  // result dimension i is dimension order[i] of x
Array sliced(const Array& x, int64_t axis, int64_t begin, int64_t end, int64_t step = 1);
Array concatenated(const Checked<Array>& parts, int64_t axis);
// Result element i is element index[i] of x; -1 gives an exact zero.
Array gathered(const Array& x, const Checked<int64_t>& index, Dims dims);

// Sums over dimensions; {} means all of them. `keep` leaves dimensions of size 1.
Array sum(const Arithmetic& m, const Array& x, Dims dims, bool keep = false);
// sum / n, with one division.
Array mean(const Arithmetic& m, const Array& x, Dims dims, bool keep = false);
// The largest element; NaN if there is one. Exact where x is.
Array largest(const Arithmetic& m, const Array& x, Dims dims, bool keep = false);
// The dimensions of x without `dims` ({}: without all), or with size 1 in their place.
Dims reduced_dims(const Dims& of, const Dims& dims, bool keep);

// [.., m, k] times [.., k, n]; leading dimensions broadcast. `added` is an error relative to the sum
// of the terms' magnitudes that the kernel may make besides.
Array matmul(const Arithmetic& m, const Array& a, const Array& b, double added = 0);

}  // namespace twinrun::aten
