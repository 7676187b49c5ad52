// Element types, shapes, and the two together: the type of a value in a program.
// First on the data's path: every folder uses these types.
//
//   TensorType t{DType::kF32, {128, 10}};
//   t.elements();    // 1280
//   to_string(t);    // "f32[128,10]"
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace twinrun {

// f64 exists only for the oracle: no program of a user contains it.
enum class DType : uint8_t { kF32, kBF16, kI32, kPred, kF64 };

size_t size_of(DType dtype);              // bytes per element
std::string_view to_string(DType dtype);  // "f32", "bf16", "i32", "pred", "f64"
std::optional<DType> parse_dtype(std::string_view text);
// The types in which programs compute real numbers. f64 is not one of them: only the oracle uses
// it.
constexpr bool is_floating(DType t) { return t == DType::kF32 || t == DType::kBF16; }

// Row-major sizes, outermost first; {} is a scalar.
using Dims = std::vector<int64_t>;

std::string to_string(const Dims& dims);  // "[128,10]"

struct TensorType {
  DType dtype = DType::kF32;
  Dims dims;

  int64_t elements() const;
  size_t bytes() const;
  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  bool operator==(const TensorType&) const = default;
};

std::string to_string(const TensorType& type);

}  // namespace twinrun
