// HDF5 files by other programs: more element types than ours, text of variable length, files in
// memory. Reading text of variable length relies on libhdf5's own checks more than anything else
// here; callers read such files through run_isolated.
#include <array>
#include <cstring>

#include "checkpoints/container/hdf5_file.h"
#include "checkpoints/container/hdf5_internal.h"

namespace twinrun {

using hdf5_internal::attribute_place;
using hdf5_internal::describe;
using hdf5_internal::hdf5_error;
using hdf5_internal::Quiet;
using hdf5_internal::spend;
using hdf5_internal::start_library;

namespace {

// IEEE 754 binary16, for which HDF5 1.10 has no predefined type.
Hdf5Id half_type() {
  Hdf5Id type(H5Tcopy(H5T_IEEE_F32LE));
  if (!type.valid() || H5Tset_fields(type.get(), 15, 10, 5, 0, 10) < 0 ||
      H5Tset_size(type.get(), 2) < 0 || H5Tset_ebias(type.get(), 15) < 0) {
    return Hdf5Id();
  }
  return type;
}

// h5py's bool: an enumeration of int8 with FALSE = 0 and TRUE = 1.
Hdf5Id bool_type() {
  Hdf5Id type(H5Tenum_create(H5T_STD_I8LE));
  const int8_t no = 0, yes = 1;
  if (!type.valid() || H5Tenum_insert(type.get(), "FALSE", &no) < 0 ||
      H5Tenum_insert(type.get(), "TRUE", &yes) < 0) {
    return Hdf5Id();
  }
  return type;
}

Hdf5Id opaque_type() {
  Hdf5Id type(H5Tcreate(H5T_OPAQUE, 2));
  if (!type.valid() || H5Tset_tag(type.get(), "") < 0) return Hdf5Id();
  return type;
}

// The HDF5 type of elements in memory and in written files: little-endian, as in NamedArray.
Hdf5Id stored_type(ElementType type) {
  switch (type) {
    case ElementType::kBool:
      return bool_type();
    case ElementType::kF16:
      return half_type();
    case ElementType::kBF16:
      return opaque_type();
    case ElementType::kI8:
      return Hdf5Id(H5Tcopy(H5T_STD_I8LE));
    case ElementType::kI16:
      return Hdf5Id(H5Tcopy(H5T_STD_I16LE));
    case ElementType::kI32:
      return Hdf5Id(H5Tcopy(H5T_STD_I32LE));
    case ElementType::kI64:
      return Hdf5Id(H5Tcopy(H5T_STD_I64LE));
    case ElementType::kU8:
      return Hdf5Id(H5Tcopy(H5T_STD_U8LE));
    case ElementType::kU16:
      return Hdf5Id(H5Tcopy(H5T_STD_U16LE));
    case ElementType::kU32:
      return Hdf5Id(H5Tcopy(H5T_STD_U32LE));
    case ElementType::kU64:
      return Hdf5Id(H5Tcopy(H5T_STD_U64LE));
    case ElementType::kF64:
      return Hdf5Id(H5Tcopy(H5T_IEEE_F64LE));
    default:
      return Hdf5Id(H5Tcopy(H5T_IEEE_F32LE));
  }
}

// Whether the file's type is `type`, in either byte order.
bool same_type(hid_t found, ElementType type) {
  const Hdf5Id little = stored_type(type);
  if (!little.valid()) return false;
  if (H5Tequal(found, little.get()) > 0) return true;
  if (type == ElementType::kBool || type == ElementType::kBF16 || size_of(type) == 1) return false;
  return H5Tset_order(little.get(), H5T_ORDER_BE) >= 0 && H5Tequal(found, little.get()) > 0;
}

constexpr std::array kTypes = {ElementType::kF32, ElementType::kF64, ElementType::kF16,
                               ElementType::kI32, ElementType::kI64, ElementType::kI16,
                               ElementType::kI8,  ElementType::kU8,  ElementType::kU16,
                               ElementType::kU32, ElementType::kU64, ElementType::kBool};

}  // namespace

Result<std::optional<std::vector<std::string>>> Hdf5Node::foreign_texts(
    const std::string& name) const {
  using Texts = std::optional<std::vector<std::string>>;
  const Quiet quiet;
  const std::string place = attribute_place(where_, name);
  const Hdf5Id id(H5Aopen(id_.get(), name.c_str(), H5P_DEFAULT));
  if (!id.valid()) return hdf5_error("cannot open the attribute", place);
  const Hdf5Id space(H5Aget_space(id.get())), type(H5Aget_type(id.get()));
  if (!space.valid() || !type.valid()) return hdf5_error("cannot read the attribute", place);
  const H5S_class_t shape = H5Sget_simple_extent_type(space.get());
  const int rank = H5Sget_simple_extent_ndims(space.get());
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  if (shape == H5S_NULL || count == 0) return Texts(std::in_place);
  if (H5Tget_class(type.get()) != H5T_STRING || rank < 0 || rank > 1 || count < 0) return Texts();
  const bool variable = H5Tis_variable_str(type.get()) > 0;
  const size_t width = variable ? sizeof(char*) : H5Tget_size(type.get());
  const auto length = static_cast<uint64_t>(count);
  if (width == 0 || length > budget_->left / width) {
    return Error{"declares more text than the file holds", place,
                 "the file is damaged: download or write it again"};
  }
  TWINRUN_RETURN_IF_ERROR(spend(*budget_, length * width, place));
  const Hdf5Id memory(H5Tcopy(type.get()));
  std::vector<char> raw(length * width);
  if (!memory.valid() || H5Aread(id.get(), memory.get(), raw.data()) < 0) {
    return hdf5_error("cannot read the attribute", place);
  }
  std::vector<std::string> texts;
  uint64_t read = 0;
  for (uint64_t i = 0; i < length; ++i) {
    const char* at = &raw[i * width];
    if (variable) {
      const char* text = nullptr;
      std::memcpy(&text, at, sizeof text);
      texts.emplace_back(text == nullptr ? "" : text);
      read += texts.back().size();
    } else {
      std::string text(at, width);
      text.resize(std::min(text.find('\0'), text.size()));
      texts.push_back(std::move(text));
    }
  }
  if (variable) H5Dvlen_reclaim(memory.get(), space.get(), H5P_DEFAULT, raw.data());
  TWINRUN_RETURN_IF_ERROR(spend(*budget_, read, place));
  return Texts(std::move(texts));
}

Result<NamedArray> Hdf5Dataset::read_foreign() const {
  const Quiet quiet;
  const Hdf5Id found(H5Dget_type(id_.get()));
  if (!found.valid()) return hdf5_error("cannot read the element type", where_);
  NamedArray array;
  bool known = false;
  TWINRUN_ASSIGN(const bool named, has_attribute("dtype"));
  if (named) {
    TWINRUN_ASSIGN(const auto dtype, foreign_texts("dtype"));
    known = dtype && *dtype == std::vector<std::string>{"bfloat16"} &&
            (same_type(found.get(), ElementType::kU16) ||
             (H5Tget_class(found.get()) == H5T_OPAQUE && H5Tget_size(found.get()) == 2));
    array.type = ElementType::kBF16;
  }
  for (const ElementType type : kTypes) {
    if (known || !same_type(found.get(), type)) continue;
    array.type = type;
    known = true;
  }
  if (!known) {
    return Error{
        fmt::format(
            "has elements of {}; allowed: numbers of 8 to 64 bits, bool and Keras's bfloat16",
            describe(found.get())),
        where_, "convert it to float32 where it was made"};
  }
  TWINRUN_ASSIGN(array.dims, checked_dims(size_of(array.type)));
  if (array.dims.size() > kMaxDims) return Error{"has too many dimensions", where_, ""};
  array.bytes.resize(checked_bytes(array.type, array.dims).value_or(0));
  // Opaque elements are read with the file's own type, since HDF5 converts
  // opaque types to equal ones only.
  const bool opaque = H5Tget_class(found.get()) == H5T_OPAQUE;
  const Hdf5Id memory =
      opaque ? Hdf5Id(H5Tcopy(found.get()))
             : stored_type(array.type == ElementType::kBF16 ? ElementType::kU16 : array.type);
  if (!array.bytes.empty() &&
      H5Dread(id_.get(), memory.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, array.bytes.data()) < 0) {
    return hdf5_error("cannot read the data", where_);
  }
  return array;
}

Result<Hdf5Dataset> Hdf5Group::write_foreign(const std::string& name, const NamedArray& array) {
  if (array.type == ElementType::kBF16) {
    return Error{"bfloat16 has no plain HDF5 type", below(name), "write it as float32, exactly"};
  }
  const Hdf5Id type = stored_type(array.type);
  if (!type.valid()) return hdf5_error("cannot make the element type", below(name));
  return write(name, type.get(), type.get(), array.dims, array.bytes.data());
}

Result<Hdf5File> Hdf5File::open_image(std::span<const std::byte> image, const std::string& name,
                                      uint64_t unpacked) {
  start_library();
  const Quiet quiet;
  constexpr size_t kGrowth = size_t{1} << 20;
  const Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS));
  // HDF5's parameter is a pointer to non-const, but it only copies from there.
  if (!access.valid() || H5Pset_fapl_core(access.get(), kGrowth, /*backing_store=*/false) < 0 ||
      H5Pset_file_image(access.get(), const_cast<std::byte*>(image.data()), image.size()) < 0) {
    return hdf5_error("cannot prepare to read", name);
  }
  Hdf5Id id(H5Fopen("image.h5", H5F_ACC_RDONLY, access.get()));
  if (!id.valid()) {
    Error error = hdf5_error("is not a readable HDF5 file", name);
    error.fix = "it is damaged, cut short, or of another format: download or write it again";
    return error;
  }
  return Hdf5File(std::move(id), name,
                  std::make_shared<Hdf5Budget>(Hdf5Budget{
                      image.size(), unpacked > 0 ? unpacked : image.size(), unpacked > 0}));
}

}  // namespace twinrun
