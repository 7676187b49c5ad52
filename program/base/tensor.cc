// Tensor storage: 64-byte aligned blocks shared by reference count. Counts the live bytes of all of
// them.
#include "program/base/tensor.h"

#include <atomic>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "program/base/huge_pages.h"
#include "program/base/tensor_memory.h"

namespace twinrun {
namespace {

constexpr size_t kAlignment = 64;

std::atomic<int64_t> live_bytes = 0, peak_bytes = 0;

void count(int64_t bytes) {
  const int64_t live = live_bytes.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t peak = peak_bytes.load(std::memory_order_relaxed);
  while (live > peak && !peak_bytes.compare_exchange_weak(peak, live, std::memory_order_relaxed)) {
  }
}

}  // namespace

TensorMemory tensor_memory() { return {live_bytes.load(), peak_bytes.load()}; }
void reset_tensor_peak() { peak_bytes = live_bytes.load(); }

Tensor Tensor::empty(TensorType type) {
  Tensor t;
  t.elements_ = type.elements();
  const size_t bytes = (type.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  auto* memory =
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, bytes ? bytes : kAlignment));
  if (memory == nullptr) throw std::bad_alloc();
  prefer_huge_pages(memory, bytes);
  const auto held = static_cast<int64_t>(bytes ? bytes : kAlignment);
  count(held);
  t.storage_ = std::shared_ptr<std::byte>(memory, [held](std::byte* p) {
    std::free(p);
    live_bytes.fetch_sub(held, std::memory_order_relaxed);
  });
  t.data_ = memory;
  t.type_ = std::move(type);
  return t;
}

Tensor Tensor::zeros(TensorType type) {
  Tensor t = empty(std::move(type));
  std::memset(t.raw(), 0, t.bytes());
  return t;
}

Tensor Tensor::in(std::shared_ptr<std::byte> memory, TensorType type) {
  Tensor t;
  t.elements_ = type.elements();
  t.data_ = memory.get();
  t.storage_ = std::move(memory);
  t.type_ = std::move(type);
  return t;
}

Tensor Tensor::scalar(float value) {
  Tensor t = empty({DType::kF32, {}});
  t.as<float>()[0] = value;
  return t;
}

Tensor Tensor::scalar_i32(int32_t value) {
  Tensor t = empty({DType::kI32, {}});
  t.as<int32_t>()[0] = value;
  return t;
}

Tensor Tensor::clone() const {
  Tensor t = empty(type_);
  std::memcpy(t.raw(), raw(), bytes());
  return t;
}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  assert(!type_.dims.empty() && begin >= 0 && begin <= end && end <= type_.dims[0]);
  Tensor t = *this;
  const int64_t row = type_.dims[0] == 0 ? 0 : elements_ / type_.dims[0];
  t.type_.dims[0] = end - begin;
  t.elements_ = row * (end - begin);
  t.data_ = data_ + static_cast<size_t>(row * begin) * size_of(type_.dtype);
  return t;
}

Tensor Tensor::at(size_t offset, TensorType type) const {
  assert(offset + type.bytes() <= bytes());
  Tensor t;
  t.type_ = std::move(type);
  t.elements_ = t.type_.elements();
  t.storage_ = storage_;
  t.data_ = data_ + offset;
  return t;
}

Tensor Tensor::reshaped(Dims dims) const {
  Tensor t = *this;
  t.type_.dims = std::move(dims);
  assert(t.type_.elements() == elements_);
  return t;
}

bool Tensor::same_bits(const Tensor& other) const {
  return type_ == other.type_ &&
         (raw() == other.raw() || bytes() == 0 || std::memcmp(raw(), other.raw(), bytes()) == 0);
}

}  // namespace twinrun
