// Reads elements of recorded tensors.
#include "backends/aten/call.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "backends/aten/array.h"
#include "program/base/bits.h"

namespace twinrun::aten {
namespace {

struct ElementFacts {
  std::string_view name;
  int64_t bytes;
};
constexpr std::array<ElementFacts, 13> kElements = {{{"bool", 1},
                                                     {"uint8", 1},
                                                     {"int8", 1},
                                                     {"int16", 2},
                                                     {"int32", 4},
                                                     {"int64", 8},
                                                     {"float16", 2},
                                                     {"bfloat16", 2},
                                                     {"float32", 4},
                                                     {"float64", 8},
                                                     {"complex64", 8},
                                                     {"complex128", 16},
                                                     {"another dtype", 0}}};

template <typename T>
T read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

void beyond_the_end() { throw Undefined("its arguments do not fit each other"); }

std::string_view name_of(Element e) { return kElements[static_cast<size_t>(e)].name; }
int64_t size_of(Element e) { return kElements[static_cast<size_t>(e)].bytes; }

double f16_to_double(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const double fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31)
    return fraction != 0 ? std::nan("") : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

bool TensorView::is_dense() const {
  int64_t dense = 1;
  for (size_t d = dims.size(); d-- > 0;) {
    if (dims[d] != 1 && strides[d] != dense) return false;
    dense *= dims[d];
  }
  return true;
}
int64_t TensorView::elements() const {
  return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
}

double element_at(const std::byte* p, Element element) {
  switch (element) {
    case Element::kBool:
      return read<uint8_t>(p) != 0;
    case Element::kU8:
      return read<uint8_t>(p);
    case Element::kI8:
      return read<int8_t>(p);
    case Element::kI16:
      return read<int16_t>(p);
    case Element::kI32:
      return read<int32_t>(p);
    case Element::kI64:
      return static_cast<double>(read<int64_t>(p));
    case Element::kF16:
      return f16_to_double(read<uint16_t>(p));
    case Element::kBF16:
      return bf16_to_f32(read<uint16_t>(p));
    case Element::kF32:
      return read<float>(p);
    case Element::kF64:
      return read<double>(p);
    default:
      return std::nan("");
  }
}

double TensorView::at(int64_t flat) const {
  if (estimate != nullptr) return estimate->value[static_cast<size_t>(flat)];
  if (data == nullptr) return std::nan("");
  if (flat < 0) [[unlikely]]
    beyond_the_end();
  int64_t offset = 0;
  for (size_t d = dims.size(); d-- > 0;) {
    if (dims[d] == 0) [[unlikely]]
      beyond_the_end();
    offset += flat % dims[d] * strides[d];
    flat /= dims[d];
  }
  if (flat != 0) [[unlikely]]  // what is left of an index beyond the last element
    beyond_the_end();
  return element_at(data + offset * size_of(element), element);
}

std::string TensorView::type() const {
  return fmt::format("{}[{}]", name_of(element), fmt::join(dims, ", "));
}

void collect(const Value& value, std::vector<const TensorView*>& to) {
  if (value.kind == Value::Kind::kTensor) to.push_back(&value.tensor);
  for (const Value& item : value.items) collect(item, to);
}

}  // namespace twinrun::aten
