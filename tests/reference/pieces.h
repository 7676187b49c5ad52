// Declarations and helpers that the files of the naive interpreter share. Private to
// tests/reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <stdexcept>
#include <vector>

#include "program/base/bits.h"
#include "tests/reference/interpreter.h"
#include "tests/reference/scalar.h"

namespace twinrun::reference {

using Floats = std::vector<float>;

inline Floats load(const Tensor& t) {
  Floats out(static_cast<size_t>(t.elements()));
  for (size_t i = 0; i < out.size(); ++i) {
    switch (t.dtype()) {
      case DType::kF32:
        out[i] = t.as<float>()[i];
        break;
      case DType::kBF16:
        out[i] = bf16_to_f32(t.as<uint16_t>()[i]);
        break;
      default:
        throw std::logic_error("reference: not a float tensor");
    }
  }
  return out;
}

inline Tensor save(const Floats& values, const TensorType& type) {
  Tensor t = Tensor::empty(type);
  if (t.elements() != static_cast<int64_t>(values.size()))
    throw std::logic_error("reference: size");
  for (size_t i = 0; i < values.size(); ++i) {
    switch (type.dtype) {
      case DType::kF32:
        t.as<float>()[i] = canonical(values[i]);
        break;
      case DType::kBF16:
        t.as<uint16_t>()[i] = bf16_round(values[i]);
        break;
      default:
        throw std::logic_error("reference: not a float result");
    }
  }
  return t;
}

inline std::vector<int64_t> unflatten(int64_t i, const Dims& dims) {
  std::vector<int64_t> index(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    index[d] = i % dims[d];
    i /= dims[d];
  }
  return index;
}
inline int64_t flatten(const std::vector<int64_t>& index, const Dims& dims) {
  int64_t i = 0;
  for (size_t d = 0; d < dims.size(); ++d) i = i * dims[d] + index[d];
  return i;
}

// IEEE 754-2019 maximum.
inline float maximum(float a, float b) {
  if (a != a || b != b) return from_bits(kCanonicalNaN);
  if (a == b) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

Tensor dot_general(const Op& op, const Tensor& lhs, const Tensor& rhs, ReferenceArithmetic);
Tensor convolution(const Op& op, const Tensor& x, const Tensor& w, ReferenceArithmetic);
Tensor convolution_input_grad(const Op& op, const Tensor& dy, const Tensor& w, ReferenceArithmetic);
Tensor convolution_kernel_grad(const Op& op, const Tensor& x, const Tensor& dy,
                               ReferenceArithmetic);
Tensor reduce(const Op& op, const Tensor& x, const Scalar& s);
Tensor scatter_add(const Op& op, const Tensor& ids, const Tensor& dy, const Scalar& s);
Tensor reduce_window(const Op& op, const Tensor& x, const Scalar& s);
Tensor select_and_scatter(const Op& op, const Tensor& x, const Tensor& dy, const Scalar& s);
Tensor avg_pool_grad(const Op& op, const Tensor& dy, const Scalar& s);

}  // namespace twinrun::reference
