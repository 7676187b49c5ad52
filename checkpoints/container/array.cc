// Element types of foreign arrays, and their conversion to tensors and back.
#include "checkpoints/container/array.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <limits>

#include "checkpoints/container/open_file.h"
#include "program/base/bits.h"
#include "program/base/os_error.h"

namespace twinrun {

static_assert(std::endian::native == std::endian::little, "elements are copied as they are");

namespace {

struct Facts {
  std::string_view name;
  size_t bytes;
};
constexpr std::array<Facts, 13> kFacts = {{{"bool", 1},
                                           {"int8", 1},
                                           {"int16", 2},
                                           {"int32", 4},
                                           {"int64", 8},
                                           {"uint8", 1},
                                           {"uint16", 2},
                                           {"uint32", 4},
                                           {"uint64", 8},
                                           {"float16", 2},
                                           {"bfloat16", 2},
                                           {"float32", 4},
                                           {"float64", 8}}};

template <typename T>
T element(const NamedArray& array, int64_t i) {
  T value;
  std::memcpy(&value, array.bytes.data() + static_cast<size_t>(i) * sizeof(T), sizeof(T));
  return value;
}

// Exact: every binary16 number is a binary32 number. NaN payloads move to the upper fraction bits.
float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
  const uint32_t exponent = (h >> 10) & 31u, fraction = h & 0x3FFu;
  if (exponent == 31) return from_bits(sign | 0x7F800000u | (fraction << 13));
  if (exponent != 0) return from_bits(sign | ((exponent + 112u) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // exact
  return from_bits(sign | to_bits(magnitude));
}

bool is_float(ElementType type) { return type >= ElementType::kF16; }
bool is_integer(ElementType type) { return type >= ElementType::kI8 && type <= ElementType::kU64; }

double as_double(const NamedArray& array, int64_t i) {
  switch (array.type) {
    case ElementType::kF16:
      return f16_to_f32(element<uint16_t>(array, i));
    case ElementType::kBF16:
      return bf16_to_f32(element<uint16_t>(array, i));
    case ElementType::kF32:
      return element<float>(array, i);
    default:
      return element<double>(array, i);
  }
}

// Element i of an integer array, or nothing where it does not fit into an int32.
std::optional<int32_t> as_int32(const NamedArray& array, int64_t i) {
  int64_t value = 0;
  switch (array.type) {
    case ElementType::kI8:
      value = element<int8_t>(array, i);  // NOLINT(bugprone-signed-char-misuse): a number
      break;
    case ElementType::kI16:
      value = element<int16_t>(array, i);
      break;
    case ElementType::kI32:
      value = element<int32_t>(array, i);
      break;
    case ElementType::kI64:
      value = element<int64_t>(array, i);
      break;
    case ElementType::kU8:
      value = element<uint8_t>(array, i);
      break;
    case ElementType::kU16:
      value = element<uint16_t>(array, i);
      break;
    case ElementType::kU32:
      value = element<uint32_t>(array, i);
      break;
    default: {
      const auto wide = element<uint64_t>(array, i);
      if (wide > static_cast<uint64_t>(std::numeric_limits<int32_t>::max())) return std::nullopt;
      value = static_cast<int64_t>(wide);
    }
  }
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    return std::nullopt;
  }
  return static_cast<int32_t>(value);
}

Error element_error(const NamedArray& array, int64_t i, const std::string& what,
                    const std::string& where) {
  return {fmt::format("element {} of '{}' ({}) {}", i, array.name, describe(array), what), where,
          ""};
}

Status fill_f32(const NamedArray& array, Tensor& out, const std::string& where) {
  const auto to = out.as<float>();
  for (int64_t i = 0; i < out.elements(); ++i) {
    const auto at = static_cast<size_t>(i);
    switch (array.type) {
      case ElementType::kF16:
        to[at] = f16_to_f32(element<uint16_t>(array, i));
        break;
      case ElementType::kBF16:
        to[at] = bf16_to_f32(element<uint16_t>(array, i));
        break;
      default: {
        const auto value = element<double>(array, i);
        // Rounds to nearest, ties to even; a NaN becomes the canonical one.
        to[at] = canonical(static_cast<float>(value));
        if (std::isinf(to[at]) && !std::isinf(value)) {
          return element_error(array, i, fmt::format("is {}, which is beyond float32", value),
                               where);
        }
      }
    }
  }
  return Ok{};
}

}  // namespace

size_t size_of(ElementType type) { return kFacts[static_cast<size_t>(type)].bytes; }
std::string_view to_string(ElementType type) { return kFacts[static_cast<size_t>(type)].name; }

std::string describe(const NamedArray& array) {
  return fmt::format("{}{}", to_string(array.type), to_string(array.dims));
}

std::optional<uint64_t> checked_bytes(ElementType type, const Dims& dims) {
  constexpr uint64_t kLimit = uint64_t{1} << 62;
  // Zeros are left out of the product, so that the limit holds for the other sizes of an empty
  // array too.
  uint64_t bytes = size_of(type);
  bool empty = false;
  for (const int64_t size : dims) {
    if (size < 0) return std::nullopt;
    empty = empty || size == 0;
    if (size == 0) continue;
    if (bytes > kLimit / static_cast<uint64_t>(size)) return std::nullopt;
    bytes *= static_cast<uint64_t>(size);
  }
  return empty ? 0 : bytes;
}

ElementType element_type(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return ElementType::kBF16;
    case DType::kI32:
      return ElementType::kI32;
    case DType::kPred:
      return ElementType::kBool;
    case DType::kF64:
      return ElementType::kF64;
    default:
      return ElementType::kF32;
  }
}

std::optional<DType> natural_dtype(ElementType type) {
  switch (type) {
    case ElementType::kF16:
    case ElementType::kF32:
      return DType::kF32;
    case ElementType::kBF16:
      return DType::kBF16;
    case ElementType::kF64:
      return DType::kF64;
    case ElementType::kBool:
      return DType::kPred;
    case ElementType::kI64:
    case ElementType::kU64:
    case ElementType::kU32:
      return std::nullopt;
    default:
      return DType::kI32;
  }
}

std::string conversion(ElementType from, DType wanted) {
  if (from == element_type(wanted)) return "";
  const bool loses = from == ElementType::kF64 && wanted == DType::kF32;
  return fmt::format("{} to {}, {}", to_string(from), to_string(element_type(wanted)),
                     loses ? "nearest" : "exact");
}

Result<Tensor> to_tensor(const NamedArray& array, DType wanted, const std::string& where) {
  const auto bytes = checked_bytes(array.type, array.dims);
  if (!bytes || *bytes != array.bytes.size()) {
    return Error{fmt::format("'{}' has {} bytes, which is not the size of {}", array.name,
                             array.bytes.size(), describe(array)),
                 where, ""};
  }
  const bool fits = (wanted == DType::kF32 && is_float(array.type)) ||
                    (wanted == DType::kF64 && is_float(array.type)) ||
                    (wanted == DType::kI32 && is_integer(array.type)) ||
                    array.type == element_type(wanted);
  if (!fits) {
    return Error{fmt::format("'{}' is {}; expected {}", array.name, describe(array),
                             to_string(element_type(wanted))),
                 where, "convert it where it was made"};
  }
  Tensor out = Tensor::empty({wanted, array.dims});
  if (array.type == element_type(wanted)) {
    if (!array.bytes.empty()) std::memcpy(out.raw(), array.bytes.data(), array.bytes.size());
    if (wanted == DType::kPred) {
      for (int64_t i = 0; i < out.elements(); ++i) {
        if (out.as<uint8_t>()[static_cast<size_t>(i)] > 1) {
          return element_error(array, i, "is neither 0 nor 1", where);
        }
      }
    }
    return out;
  }
  if (wanted == DType::kF32) {
    TWINRUN_RETURN_IF_ERROR(fill_f32(array, out, where));
  } else if (wanted == DType::kF64) {
    for (int64_t i = 0; i < out.elements(); ++i) {
      out.as<double>()[static_cast<size_t>(i)] = as_double(array, i);
    }
  } else {
    for (int64_t i = 0; i < out.elements(); ++i) {
      const auto value = as_int32(array, i);
      if (!value) return element_error(array, i, "does not fit into an int32", where);
      out.as<int32_t>()[static_cast<size_t>(i)] = *value;
    }
  }
  return out;
}

NamedArray to_array(std::string name, const Tensor& tensor) {
  NamedArray array{std::move(name), element_type(tensor.dtype()), tensor.dims(), {}};
  array.bytes.assign(tensor.raw(), tensor.raw() + tensor.bytes());
  return array;
}

Result<std::vector<std::byte>> read_whole_file(const std::string& path, uint64_t most) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    return Error{fmt::format("cannot open: {}", std::strerror(errno)), path,
                 errno == ENOENT ? "check the name" : "", kind_of_failure(errno)};
  }
  return read_open_file(file.get(), most, path);
}

}  // namespace twinrun
