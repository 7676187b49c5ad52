// The writing half of the HDF5 layer, and what reading and writing share. hdf5_read.cc reads.
#include "checkpoints/container/hdf5_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <new>

#include "checkpoints/container/atomic_file.h"
#include "checkpoints/container/hdf5_internal.h"
#include "checkpoints/container/image_memory.h"

namespace twinrun {
namespace hdf5_internal {

Error hdf5_error(const std::string& what, const std::string& where) {
  // HDF5 walks from the innermost frame outward: the first description is the cause.
  std::string cause;
  H5Ewalk2(
      H5E_DEFAULT, H5E_WALK_UPWARD,
      [](unsigned, const H5E_error2_t* error, void* out) -> herr_t {
        auto& text = *static_cast<std::string*>(out);
        if (text.empty() && error->desc != nullptr) text = error->desc;
        return 0;
      },
      &cause);
  H5Eclear2(H5E_DEFAULT);
  return {cause.empty() ? what : fmt::format("{} (HDF5: {})", what, cause), where, ""};
}

void start_library() {
  [[maybe_unused]] static const herr_t once = H5dont_atexit();
  constexpr size_t kRoom = size_t{16} << 20;
  void* volatile room = std::malloc(kRoom);  // volatile: the compiler would leave out both calls
  if (room == nullptr) throw std::bad_alloc();
  std::free(room);
}

std::span<const Storage> storages() {
  static const std::array<Storage, 5> table = {{
      {DType::kF32, H5T_IEEE_F32LE, H5T_NATIVE_FLOAT, nullptr},
      {DType::kBF16, H5T_STD_U16LE, H5T_NATIVE_UINT16, "bfloat16"},
      {DType::kI32, H5T_STD_I32LE, H5T_NATIVE_INT32, nullptr},
      {DType::kPred, H5T_STD_U8LE, H5T_NATIVE_UINT8, "pred"},
      {DType::kF64, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, nullptr},
  }};
  return table;
}

const Storage& storage_of(DType dtype) { return storages()[static_cast<size_t>(dtype)]; }

Hdf5Id string_type(size_t length) {
  Hdf5Id type(H5Tcopy(H5T_C_S1));
  if (!type.valid() || H5Tset_size(type.get(), std::max<size_t>(length, 1)) < 0 ||
      H5Tset_strpad(type.get(), H5T_STR_NULLPAD) < 0 ||
      H5Tset_cset(type.get(), H5T_CSET_UTF8) < 0) {
    return Hdf5Id();
  }
  return type;
}

}  // namespace hdf5_internal

using hdf5_internal::attribute_place;
using hdf5_internal::hdf5_error;
using hdf5_internal::Quiet;
using hdf5_internal::start_library;
using hdf5_internal::Storage;
using hdf5_internal::storage_of;
using hdf5_internal::string_type;

namespace {

// Up to this many attributes stay in the object header, which has a checksum.
constexpr unsigned kCompactAttributes = 64;

Hdf5Id creation_list(hid_t list_class) {
  Hdf5Id list(H5Pcreate(list_class));
  if (!list.valid() || H5Pset_obj_track_times(list.get(), false) < 0 ||
      H5Pset_attr_phase_change(list.get(), kCompactAttributes, kCompactAttributes / 2) < 0) {
    return Hdf5Id();
  }
  return list;
}

Hdf5Id utf8_list(hid_t list_class) {
  Hdf5Id list(H5Pcreate(list_class));
  if (!list.valid() || H5Pset_char_encoding(list.get(), H5T_CSET_UTF8) < 0) return Hdf5Id();
  return list;
}

Status check_name(const std::string& name, const std::string& where) {
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\0", 2)) != std::string::npos) {
    return Error{fmt::format("'{}' cannot name a group, dataset or attribute", name), where,
                 "use a non-empty name without '/' and other than '.' and '..'"};
  }
  return Ok{};
}

Status check_text(std::string_view value, const std::string& where) {
  if (value.find('\0') == std::string_view::npos) return Ok{};
  return Error{"the text contains a zero byte", where, "remove it"};
}

}  // namespace

Hdf5Id::~Hdf5Id() {
  if (id_ < 0) return;
  const Quiet quiet;
  H5Idec_ref(id_);
}

// ---- attributes ----

Status Hdf5Node::set_scalar(const std::string& name, int64_t file_type, int64_t memory_type,
                            const void* value) {
  const Quiet quiet;
  const std::string place = attribute_place(where_, name);
  if (name.empty() || name.find('\0') != std::string::npos) {
    return Error{"an attribute's name is empty or contains a zero byte", where_, ""};
  }
  const Hdf5Id space(H5Screate(H5S_SCALAR)), names = utf8_list(H5P_ATTRIBUTE_CREATE);
  const Hdf5Id attribute(
      H5Acreate2(id_.get(), name.c_str(), file_type, space.get(), names.get(), H5P_DEFAULT));
  if (!attribute.valid() || H5Awrite(attribute.get(), memory_type, value) < 0) {
    return hdf5_error("cannot write the attribute", place);
  }
  return Ok{};
}

Status Hdf5Node::set_text(const std::string& name, std::string_view value) {
  TWINRUN_RETURN_IF_ERROR(check_text(value, attribute_place(where_, name)));
  const Hdf5Id type = string_type(value.size());
  return set_scalar(name, type.get(), type.get(), value.empty() ? "" : value.data());
}
Status Hdf5Node::set_texts(const std::string& name, std::span<const std::string> values) {
  const Quiet quiet;
  const std::string place = attribute_place(where_, name);
  size_t width = 1;
  for (const std::string& value : values) {
    TWINRUN_RETURN_IF_ERROR(check_text(value, place));
    width = std::max(width, value.size());
  }
  std::vector<char> padded(width * values.size(), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].empty()) std::memcpy(&padded[i * width], values[i].data(), values[i].size());
  }
  const hsize_t length = values.size();
  const Hdf5Id type = string_type(width), space(H5Screate_simple(1, &length, nullptr)),
               names = utf8_list(H5P_ATTRIBUTE_CREATE);
  const Hdf5Id attribute(
      H5Acreate2(id_.get(), name.c_str(), type.get(), space.get(), names.get(), H5P_DEFAULT));
  if (!attribute.valid() ||
      (length != 0 && H5Awrite(attribute.get(), type.get(), padded.data()) < 0)) {
    return hdf5_error("cannot write the attribute", place);
  }
  return Ok{};
}
Status Hdf5Node::set_int(const std::string& name, int64_t value) {
  return set_scalar(name, H5T_STD_I64LE, H5T_NATIVE_INT64, &value);
}
Status Hdf5Node::set_uint(const std::string& name, uint64_t value) {
  return set_scalar(name, H5T_STD_U64LE, H5T_NATIVE_UINT64, &value);
}
Status Hdf5Node::set_real(const std::string& name, double value) {
  return set_scalar(name, H5T_IEEE_F64LE, H5T_NATIVE_DOUBLE, &value);
}

// ---- groups and datasets ----

std::string Hdf5Group::below(const std::string& name) const {
  return where_.ends_with('/') ? where_ + name : where_ + "/" + name;
}

Result<Hdf5Group> Hdf5Group::create_group(const std::string& name) {
  const Quiet quiet;
  TWINRUN_RETURN_IF_ERROR(check_name(name, where_));
  const Hdf5Id links = utf8_list(H5P_LINK_CREATE), how = creation_list(H5P_GROUP_CREATE);
  Hdf5Id id(H5Gcreate2(id_.get(), name.c_str(), links.get(), how.get(), H5P_DEFAULT));
  if (!id.valid()) return hdf5_error("cannot create the group", below(name));
  return Hdf5Group(std::move(id), below(name), budget_);
}

Result<Hdf5Dataset> Hdf5Group::write(const std::string& name, int64_t file_type,
                                     int64_t memory_type, const Dims& dims, const void* data) {
  const Quiet quiet;
  TWINRUN_RETURN_IF_ERROR(check_name(name, where_));
  if (dims.size() > H5S_MAX_RANK) {
    return Error{fmt::format("the rank is {}; HDF5 allows at most {}", dims.size(), H5S_MAX_RANK),
                 below(name), "reshape the tensor"};
  }
  const std::vector<hsize_t> sizes(dims.begin(), dims.end());
  const bool empty = std::find(dims.begin(), dims.end(), 0) != dims.end();
  const Hdf5Id space(sizes.empty()
                         ? H5Screate(H5S_SCALAR)
                         : H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr));
  const Hdf5Id links = utf8_list(H5P_LINK_CREATE), how = creation_list(H5P_DATASET_CREATE);
  // Allocate the storage at once and do not fill it: the data are written immediately.
  if (!how.valid() || H5Pset_layout(how.get(), H5D_CONTIGUOUS) < 0 ||
      H5Pset_alloc_time(how.get(), H5D_ALLOC_TIME_EARLY) < 0 ||
      H5Pset_fill_time(how.get(), H5D_FILL_TIME_NEVER) < 0) {
    return hdf5_error("cannot prepare the dataset", below(name));
  }
  Hdf5Id id(H5Dcreate2(id_.get(), name.c_str(), file_type, space.get(), links.get(), how.get(),
                       H5P_DEFAULT));
  if (!id.valid()) return hdf5_error("cannot create the dataset", below(name));
  if (!empty && H5Dwrite(id.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) < 0) {
    return hdf5_error("cannot write the dataset", below(name));
  }
  return Hdf5Dataset(std::move(id), below(name), budget_);
}

Result<Hdf5Dataset> Hdf5Group::write_tensor(const std::string& name, const Tensor& tensor) {
  if (!tensor.valid()) return Error{"the tensor has no value", below(name), ""};
  const Storage& storage = storage_of(tensor.dtype());
  TWINRUN_ASSIGN(Hdf5Dataset dataset,
                 write(name, storage.file_type, storage.memory_type, tensor.dims(), tensor.raw()));
  if (storage.attribute != nullptr) {
    TWINRUN_RETURN_IF_ERROR(dataset.set_text("dtype", storage.attribute));
  }
  return dataset;
}

Result<Hdf5Dataset> Hdf5Group::write_i64(const std::string& name, std::span<const int64_t> values) {
  return write(name, H5T_STD_I64LE, H5T_NATIVE_INT64, {static_cast<int64_t>(values.size())},
               values.data());
}

Result<Hdf5Dataset> Hdf5Group::write_strings(const std::string& name,
                                             std::span<const std::string> values) {
  size_t width = 1;
  for (const std::string& value : values) {
    TWINRUN_RETURN_IF_ERROR(check_text(value, below(name)));
    width = std::max(width, value.size());
  }
  std::vector<char> padded(width * values.size(), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    if (!values[i].empty()) std::memcpy(&padded[i * width], values[i].data(), values[i].size());
  }
  const Hdf5Id type = string_type(width);
  return write(name, type.get(), type.get(), {static_cast<int64_t>(values.size())}, padded.data());
}

// ---- files ----

Result<Hdf5File> Hdf5File::create(const std::string& path) {
  start_library();
  const Quiet quiet;
  const Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS)), how = creation_list(H5P_FILE_CREATE);
  // The file is built in memory, so that a full disk makes our own write(2) fail and not HDF5 in
  // the middle of its metadata.
  constexpr size_t kGrowth = size_t{1} << 20;
  if (!access.valid() || !how.valid() ||
      H5Pset_fapl_core(access.get(), kGrowth, /*backing_store=*/false) < 0 ||
      !use_image_memory(access.get(), std::filesystem::path(path).parent_path().string()) ||
      H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18) < 0) {
    return hdf5_error("cannot prepare a file", path);
  }
  // HDF5 identifies open files by name, those in memory too. Unique names let several threads write
  // at once.
  static std::atomic<uint64_t> files = 0;
  const std::string name = "twinrun-" + std::to_string(files++) + ".h5";
  Hdf5Id id(H5Fcreate(name.c_str(), H5F_ACC_TRUNC, how.get(), access.get()));
  if (!id.valid()) return hdf5_error("cannot create a file in memory", path);
  return Hdf5File(std::move(id), path, std::make_shared<Hdf5Budget>());
}

Result<Hdf5Group> Hdf5File::root() const {
  const Quiet quiet;
  const std::string where = path_ + ":/";
  Hdf5Id id(H5Gopen2(id_.get(), "/", H5P_DEFAULT));
  if (!id.valid()) return hdf5_error("cannot open the root group", where);
  return Hdf5Group(std::move(id), where, budget_);
}

namespace {

// The content written so far; valid until the file changes.
Result<std::span<const std::byte>> image_of(hid_t id, const std::string& path) {
  const Quiet quiet;
  // With a buffer, H5Fget_file_image would copy. Without one it returns the size only; the driver's
  // handle gives the address.
  void* handle = nullptr;
  if (H5Fflush(id, H5F_SCOPE_LOCAL) < 0) return hdf5_error("cannot finish the file", path);
  const ssize_t bytes = H5Fget_file_image(id, nullptr, 0);
  if (bytes <= 0 || H5Fget_vfd_handle(id, H5P_DEFAULT, &handle) < 0 || handle == nullptr) {
    return hdf5_error("cannot take the file's image", path);
  }
  const auto* image = *static_cast<const std::byte* const*>(handle);
  return std::span(image, static_cast<size_t>(bytes));
}

}  // namespace

Status Hdf5File::save() && {
  TWINRUN_ASSIGN(const auto bytes, image_of(id_.get(), path_));
  return write_file_atomically(path_, bytes, file_of_image(bytes.data()));
}

Result<std::vector<std::byte>> Hdf5File::image() const {
  TWINRUN_ASSIGN(const auto bytes, image_of(id_.get(), path_));
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

}  // namespace twinrun
