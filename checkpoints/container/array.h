// An array as a foreign file holds it, before it becomes a Tensor: element type, shape, and the
// elements, little-endian and row-major. Every reader of weights and samples (npy, npz,
// safetensors, HDF5) returns these arrays, and every writer accepts them.
//
//   TWINRUN_ASSIGN(ArrayFile file, read_npz("weights.npz"));       // npy.h
//   TWINRUN_ASSIGN(Tensor t, to_tensor(file.arrays[0], DType::kF32, "weights.npz"));
//   NamedArray back = to_array("conv1/kernel", t);
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "program/base/result.h"
#include "program/base/tensor.h"

namespace twinrun {

enum class ElementType : uint8_t {
  kBool,  // one byte, 0 or 1
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kF16,
  kBF16,
  kF32,
  kF64,
};

size_t size_of(ElementType type);              // bytes per element
std::string_view to_string(ElementType type);  // NumPy's names: "float32", "bool", "bfloat16"

struct NamedArray {
  std::string name;
  ElementType type = ElementType::kF32;
  Dims dims;
  std::vector<std::byte> bytes;  // elements x size_of(type)

  int64_t elements() const { return static_cast<int64_t>(bytes.size() / size_of(type)); }
};

// The arrays of a file, and whatever else is in it.
struct ArrayFile {
  std::vector<NamedArray> arrays;  // in the file's own order; names are unique
  std::map<std::string, std::string> metadata;
  std::vector<std::string> ignored;  // things that are not arrays: "member 'README.txt'"
};

std::string describe(const NamedArray& array);  // "float32[3,3,1,8]"

inline constexpr size_t kMaxDims = 32;  // NumPy's and HDF5's limit

// elements x size_of(type); nothing if a size is negative or the product exceeds 2^62.
std::optional<uint64_t> checked_bytes(ElementType type, const Dims& dims);

// The array converted to the type `wanted`. f32: from float32, bfloat16 and float16 exactly, from
// float64 to the nearest (ties to even; a finite number that would become infinite is an error).
// i32: from any integer type, if every element fits. pred: from bool. bf16: from bfloat16.
// f64: from every float type, exactly. Everything else is an error that names both types.
Result<Tensor> to_tensor(const NamedArray& array, DType wanted, const std::string& where);
// How to_tensor converts the elements: "float64 to float32, nearest"; "" where it copies the bits.
std::string conversion(ElementType from, DType wanted);
// The tensor type that holds every value of `type` exactly, for callers without a model that names
// the expected type; nothing if there is none.
std::optional<DType> natural_dtype(ElementType type);

NamedArray to_array(std::string name, const Tensor& tensor);
ElementType element_type(DType dtype);

// The whole of a regular file, or its first `most` bytes. A path that cannot be opened or is not a
// regular file is an error.
Result<std::vector<std::byte>> read_whole_file(const std::string& path,
                                               uint64_t most = ~uint64_t{0});

}  // namespace twinrun
