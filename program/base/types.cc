// Names and sizes of element types; shapes and types as text.
#include "program/base/types.h"

#include <array>

namespace twinrun {
namespace {

struct DTypeRow {
  DType dtype;
  std::string_view name;
  size_t size;
};
constexpr std::array<DTypeRow, 5> kDTypes = {{{DType::kF32, "f32", 4},
                                              {DType::kBF16, "bf16", 2},
                                              {DType::kI32, "i32", 4},
                                              {DType::kPred, "pred", 1},
                                              {DType::kF64, "f64", 8}}};

}  // namespace

size_t size_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].size; }
std::string_view to_string(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (const auto& row : kDTypes) {
    if (row.name == text) return row.dtype;
  }
  return std::nullopt;
}

std::string to_string(const Dims& dims) {
  std::string out = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i != 0) out += ',';
    out += std::to_string(dims[i]);
  }
  return out + "]";
}

int64_t TensorType::elements() const {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}
size_t TensorType::bytes() const { return static_cast<size_t>(elements()) * size_of(dtype); }

std::string to_string(const TensorType& type) {
  return std::string(to_string(type.dtype)) + to_string(type.dims);
}

}  // namespace twinrun
