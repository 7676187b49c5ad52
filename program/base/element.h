// One element of a tensor, whatever its type: as a number, and compared by its bits.
#pragma once

#include <cstring>

#include "program/base/bits.h"
#include "program/base/tensor.h"

namespace twinrun {

// Unchanged: denormals are kept.
inline double number_at(const Tensor& t, int64_t i) {
  const auto u = static_cast<size_t>(i);
  switch (t.dtype()) {
    case DType::kF32:
      return t.as<const float>()[u];
    case DType::kBF16:
      return bf16_to_f32(t.as<const uint16_t>()[u]);
    case DType::kI32:
      return t.as<const int32_t>()[u];
    case DType::kPred:
      return t.as<const uint8_t>()[u];
    case DType::kF64:
      return t.as<const double>()[u];
  }
  return 0;
}

// Of two tensors of one type.
inline bool same_bits_at(const Tensor& a, const Tensor& b, int64_t i) {
  const size_t size = size_of(a.dtype()), at = static_cast<size_t>(i) * size;
  return std::memcmp(a.raw() + at, b.raw() + at, size) == 0;
}

}  // namespace twinrun
