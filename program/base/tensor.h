// A typed, row-major block of elements whose storage is 64-byte aligned. Programs, checkpoints and
// engines exchange data as tensors. A copy shares the storage; clone() allocates its own.
//
//   Tensor t = Tensor::zeros({DType::kF32, {2, 3}});
//   t.as<float>()[5] = 1.0f;      // bf16 is uint16_t, i32 int32_t, pred uint8_t, f64 double
//   Tensor view = t.rows(0, 1);   // shares storage
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "program/base/types.h"

namespace twinrun {

class Tensor {
 public:
  Tensor() = default;

  static Tensor empty(TensorType type);  // contents undefined
  static Tensor zeros(TensorType type);
  // Elements that are in memory already, such as a mapped file.
  static Tensor in(std::shared_ptr<std::byte> memory, TensorType type);
  static Tensor scalar(float value);
  static Tensor scalar_i32(int32_t value);

  const TensorType& type() const { return type_; }
  DType dtype() const { return type_.dtype; }
  const Dims& dims() const { return type_.dims; }
  int64_t elements() const { return elements_; }
  size_t bytes() const { return static_cast<size_t>(elements_) * size_of(type_.dtype); }
  bool valid() const { return data_ != nullptr; }

  std::byte* raw() { return data_; }
  const std::byte* raw() const { return data_; }
  template <typename T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(data_), static_cast<size_t>(elements_)};
  }
  template <typename T>
  std::span<const T> as() const {
    return {reinterpret_cast<const T*>(data_), static_cast<size_t>(elements_)};
  }

  Tensor clone() const;
  // Rows [begin, end) of the outermost dimension, sharing storage.
  Tensor rows(int64_t begin, int64_t end) const;
  // A tensor of type `type` that begins `offset` bytes into this one's memory, sharing storage.
  Tensor at(size_t offset, TensorType type) const;
  // The same elements under another shape of equal size, sharing storage.
  Tensor reshaped(Dims dims) const;
  // True if types and bits are equal.
  bool same_bits(const Tensor& other) const;
  // Number of Tensors that share this storage. The executor reuses storage that has no other owner.
  long owners() const { return storage_.use_count(); }

 private:
  TensorType type_;
  int64_t elements_ = 0;
  std::shared_ptr<std::byte> storage_;
  std::byte* data_ = nullptr;
};

}  // namespace twinrun
