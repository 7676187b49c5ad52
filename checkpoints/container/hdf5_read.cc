// The reading half of the HDF5 layer: every size is checked before memory is allocated for it.
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>

#include "checkpoints/container/hdf5_file.h"
#include "checkpoints/container/hdf5_internal.h"
#include "program/base/os_error.h"

namespace twinrun {
namespace hdf5_internal {

Status spend(Hdf5Budget& budget, uint64_t bytes, const std::string& where) {
  if (bytes > budget.left) {
    return Error{fmt::format("declares {} bytes, but only {} of the file's {} are left to read",
                             bytes, budget.left, budget.file_bytes),
                 where, "the file is damaged: download or write it again"};
  }
  budget.left -= bytes;
  return Ok{};
}

std::string describe(hid_t type) {
  const size_t bits = H5Tget_size(type) * 8;
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return fmt::format("{}int{}", H5Tget_sign(type) == H5T_SGN_NONE ? "u" : "", bits);
    case H5T_FLOAT:
      return fmt::format("float{}", bits);
    case H5T_STRING:
      return H5Tis_variable_str(type) > 0 ? "variable-length text" : "text";
    case H5T_COMPOUND:
      return "compound";
    default:
      return "another HDF5 type";
  }
}

}  // namespace hdf5_internal

using hdf5_internal::attribute_place;
using hdf5_internal::describe;
using hdf5_internal::hdf5_error;
using hdf5_internal::Quiet;
using hdf5_internal::spend;
using hdf5_internal::start_library;
using hdf5_internal::Storage;
using hdf5_internal::storages;
using hdf5_internal::string_type;

namespace {

// The declared length of a fixed-length string type, 0 for any other type.
size_t text_length(hid_t type) {
  if (H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) != 0) return 0;
  return H5Tget_size(type);
}

Error not_text(hid_t type, const std::string& where) {
  return {fmt::format("is {}; expected text of fixed length", describe(type)), where,
          "from Python, write numpy.bytes_"};
}

}  // namespace

// ---- attributes ----

Result<bool> Hdf5Node::has_attribute(const std::string& name) const {
  const Quiet quiet;
  const htri_t found = H5Aexists(id_.get(), name.c_str());
  if (found < 0) return hdf5_error("cannot look up the attribute", attribute_place(where_, name));
  return found > 0;
}

Result<Hdf5Id> Hdf5Node::open_scalar_attribute(const std::string& name) const {
  const std::string place = attribute_place(where_, name);
  TWINRUN_ASSIGN(const bool found, has_attribute(name));
  if (!found) return Error{fmt::format("the attribute '{}' is missing", name), where_, ""};
  Hdf5Id id(H5Aopen(id_.get(), name.c_str(), H5P_DEFAULT));
  if (!id.valid()) return hdf5_error("cannot open the attribute", place);
  const Hdf5Id space(H5Aget_space(id.get()));
  if (!space.valid()) return hdf5_error("cannot read the attribute's shape", place);
  if (H5Sget_simple_extent_type(space.get()) != H5S_SCALAR) {
    return Error{"is an array; expected a scalar", place, ""};
  }
  return id;
}

Status Hdf5Node::get_scalar(const std::string& name, int64_t type, const char* type_name,
                            void* value) const {
  const Quiet quiet;
  const std::string place = attribute_place(where_, name);
  TWINRUN_ASSIGN(const Hdf5Id id, open_scalar_attribute(name));
  const Hdf5Id found(H5Aget_type(id.get()));
  if (!found.valid()) return hdf5_error("cannot read the attribute's type", place);
  if (H5Tequal(found.get(), type) <= 0) {
    return Error{fmt::format("is {}; expected {}", describe(found.get()), type_name), place, ""};
  }
  const Hdf5Id memory(H5Tget_native_type(type, H5T_DIR_ASCEND));
  if (!memory.valid() || H5Aread(id.get(), memory.get(), value) < 0) {
    return hdf5_error("cannot read the attribute", place);
  }
  return Ok{};
}

Result<int64_t> Hdf5Node::integer(const std::string& name) const {
  int64_t value = 0;
  TWINRUN_RETURN_IF_ERROR(get_scalar(name, H5T_STD_I64LE, "int64", &value));
  return value;
}
Result<uint64_t> Hdf5Node::unsigned_integer(const std::string& name) const {
  uint64_t value = 0;
  TWINRUN_RETURN_IF_ERROR(get_scalar(name, H5T_STD_U64LE, "uint64", &value));
  return value;
}
Result<double> Hdf5Node::real(const std::string& name) const {
  double value = 0;
  TWINRUN_RETURN_IF_ERROR(get_scalar(name, H5T_IEEE_F64LE, "float64", &value));
  return value;
}

Result<std::string> Hdf5Node::text(const std::string& name) const {
  const Quiet quiet;
  const std::string place = attribute_place(where_, name);
  TWINRUN_ASSIGN(const Hdf5Id id, open_scalar_attribute(name));
  const Hdf5Id found(H5Aget_type(id.get()));
  if (!found.valid()) return hdf5_error("cannot read the attribute's type", place);
  const size_t length = text_length(found.get());
  if (length == 0) return not_text(found.get(), place);
  TWINRUN_RETURN_IF_ERROR(spend(*budget_, length, place));
  std::string value(length, '\0');
  const Hdf5Id memory = string_type(length);
  if (!memory.valid() || H5Tset_cset(memory.get(), H5Tget_cset(found.get())) < 0 ||
      H5Aread(id.get(), memory.get(), value.data()) < 0) {
    return hdf5_error("cannot read the attribute", place);
  }
  value.resize(std::min(value.find('\0'), value.size()));
  return value;
}

Result<std::vector<std::string>> Hdf5Node::attributes() const {
  const Quiet quiet;
  std::vector<std::string> names;
  hsize_t position = 0;
  // Exceptions must not pass through C code: a failed allocation ends the iteration instead.
  const herr_t code = H5Aiterate2(
      id_.get(), H5_INDEX_NAME, H5_ITER_INC, &position,
      [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
        try {
          static_cast<std::vector<std::string>*>(out)->emplace_back(name);
          return 0;
        } catch (const std::exception&) {
          return -1;
        }
      },
      &names);
  if (code < 0) return hdf5_error("cannot list the attributes", where_);
  std::sort(names.begin(), names.end());
  return names;
}

Result<uint64_t> Hdf5Node::address() const {
  const Quiet quiet;
  H5O_info_t info;
  if (H5Oget_info2(id_.get(), &info, H5O_INFO_BASIC) < 0) {
    return hdf5_error("cannot look up the object", where_);
  }
  return static_cast<uint64_t>(info.addr);
}

// ---- groups ----

Result<bool> Hdf5Group::has(const std::string& name) const {
  const Quiet quiet;
  const htri_t found = H5Lexists(id_.get(), name.c_str(), H5P_DEFAULT);
  if (found < 0) return hdf5_error("cannot look up the name", below(name));
  return found > 0;
}

Result<bool> Hdf5Group::check_child(const std::string& name) const {
  const std::string place = below(name);
  H5L_info_t link;
  if (H5Lget_info(id_.get(), name.c_str(), &link, H5P_DEFAULT) < 0) {
    return hdf5_error("cannot look up the link", place);
  }
  if (link.type != H5L_TYPE_HARD) {
    return Error{"is a soft or external link; such links are not followed", place,
                 "copy the object itself into the file"};
  }
  H5O_info_t info;
  if (H5Oget_info_by_name2(id_.get(), name.c_str(), &info, H5O_INFO_BASIC, H5P_DEFAULT) < 0) {
    return hdf5_error("cannot look up the object", place);
  }
  if (info.type != H5O_TYPE_GROUP && info.type != H5O_TYPE_DATASET) {
    return Error{"is neither a group nor a dataset", place, ""};
  }
  return info.type == H5O_TYPE_GROUP;
}

Result<Hdf5Group> Hdf5Group::group(const std::string& name) const {
  const Quiet quiet;
  TWINRUN_ASSIGN(const bool found, has(name));
  if (!found) return Error{fmt::format("the group '{}' is missing", name), where_, ""};
  TWINRUN_ASSIGN(const bool is_group, check_child(name));
  if (!is_group) return Error{"is a dataset; expected a group", below(name), ""};
  Hdf5Id id(H5Gopen2(id_.get(), name.c_str(), H5P_DEFAULT));
  if (!id.valid()) return hdf5_error("cannot open the group", below(name));
  return Hdf5Group(std::move(id), below(name), budget_);
}

Result<Hdf5Dataset> Hdf5Group::dataset(const std::string& name) const {
  const Quiet quiet;
  TWINRUN_ASSIGN(const bool found, has(name));
  if (!found) return Error{fmt::format("the dataset '{}' is missing", name), where_, ""};
  TWINRUN_ASSIGN(const bool is_group, check_child(name));
  if (is_group) return Error{"is a group; expected a dataset", below(name), ""};
  Hdf5Id id(H5Dopen2(id_.get(), name.c_str(), H5P_DEFAULT));
  if (!id.valid()) return hdf5_error("cannot open the dataset", below(name));
  return Hdf5Dataset(std::move(id), below(name), budget_);
}

Result<std::vector<Hdf5Group::Child>> Hdf5Group::children() const {
  const Quiet quiet;
  std::vector<Child> found;
  hsize_t position = 0;
  const herr_t code = H5Literate(
      id_.get(), H5_INDEX_NAME, H5_ITER_INC, &position,
      [](hid_t, const char* name, const H5L_info_t*, void* out) -> herr_t {
        try {
          static_cast<std::vector<Child>*>(out)->push_back({name, false});
          return 0;
        } catch (const std::exception&) {
          return -1;
        }
      },
      &found);
  if (code < 0) return hdf5_error("cannot list the group", where_);
  for (Child& child : found) {
    TWINRUN_ASSIGN(child.is_group, check_child(child.name));
  }
  std::sort(found.begin(), found.end(),
            [](const Child& a, const Child& b) { return a.name < b.name; });
  return found;
}

// ---- datasets ----

namespace {

// Checks that a chunk needs no more memory than may still be read, and that it uses no filters but
// deflate and shuffle, which every HDF5 library has.
Status check_chunks(hid_t how, uint64_t element_bytes, uint64_t left, const std::string& where) {
  hsize_t sizes[H5S_MAX_RANK] = {};
  const int rank = H5Pget_chunk(how, H5S_MAX_RANK, sizes);
  if (rank < 0) return hdf5_error("cannot read the chunks' shape", where);
  uint64_t bytes = element_bytes;
  for (int i = 0; i < rank; ++i) {
    if (sizes[i] == 0 || bytes > left / sizes[i])
      return Error{"has chunks larger than the bytes that may be read", where,
                   "store it contiguously"};
    bytes *= sizes[i];
  }
  for (int i = 0; i < H5Pget_nfilters(how); ++i) {
    unsigned flags = 0;
    size_t values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(how, static_cast<unsigned>(i), &flags, &values,
                                               nullptr, 0, nullptr, nullptr);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE)
      return Error{fmt::format("is filtered by {}; allowed: gzip and shuffle", int{filter}), where,
                   "store it without filters"};
  }
  return Ok{};
}

}  // namespace

Result<Dims> Hdf5Dataset::checked_dims(uint64_t element_bytes) const {
  const Hdf5Id how(H5Dget_create_plist(id_.get())), space(H5Dget_space(id_.get()));
  if (!how.valid() || !space.valid()) return hdf5_error("cannot read the layout", where_);
  const H5D_layout_t layout = H5Pget_layout(how.get());
  const bool chunked = layout == H5D_CHUNKED && budget_->chunked;
  if (layout != H5D_CONTIGUOUS && layout != H5D_COMPACT && !chunked) {
    return Error{fmt::format("is stored {}virtually; expected contiguous storage",
                             budget_->chunked ? "" : "chunked or "),
                 where_, "rewrite it: h5repack -l CONTI -f NONE in.h5 out.h5"};
  }
  if (H5Pget_external_count(how.get()) != 0) {
    return Error{"keeps its data in other files, which are not opened", where_,
                 "copy the data into the file"};
  }
  if (chunked) {
    TWINRUN_RETURN_IF_ERROR(check_chunks(how.get(), element_bytes, budget_->left, where_));
  } else if (H5Pget_nfilters(how.get()) != 0) {
    return Error{"is filtered or compressed; expected storage without filters", where_,
                 "rewrite it: h5repack -l CONTI -f NONE in.h5 out.h5"};
  }
  const H5S_class_t shape = H5Sget_simple_extent_type(space.get());
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if ((shape != H5S_SCALAR && shape != H5S_SIMPLE) || rank < 0 || rank > H5S_MAX_RANK) {
    return Error{"has no shape", where_, ""};
  }
  hsize_t sizes[H5S_MAX_RANK] = {};
  if (rank > 0 && H5Sget_simple_extent_dims(space.get(), sizes, nullptr) < 0) {
    return hdf5_error("cannot read the shape", where_);
  }
  // The limit of 2^62 also holds for the other sizes of a tensor that a zero makes empty.
  constexpr uint64_t kLimit = uint64_t{1} << 62;
  uint64_t bytes = element_bytes;
  bool empty = false;
  for (int i = 0; i < rank; ++i) {
    const uint64_t size = sizes[i];
    empty = empty || size == 0;
    if (size != 0 && (size > kLimit || bytes > kLimit / size)) {
      return Error{"declares more elements than any file holds", where_,
                   "the file is damaged: download or write it again"};
    }
    if (size != 0) bytes *= size;
  }
  if (empty) bytes = 0;
  const uint64_t stored = H5Dget_storage_size(id_.get());
  if (stored != bytes && !chunked) {
    return Error{fmt::format("declares {} bytes but stores {}", bytes, stored), where_,
                 "the file is damaged: download or write it again"};
  }
  if (layout == H5D_CONTIGUOUS && bytes != 0) {
    const haddr_t offset = H5Dget_offset(id_.get());
    if (offset == HADDR_UNDEF || offset > budget_->file_bytes ||
        bytes > budget_->file_bytes - offset) {
      return Error{"its data are outside the file", where_,
                   "the file is damaged: download or write it again"};
    }
  }
  TWINRUN_RETURN_IF_ERROR(spend(*budget_, bytes, where_));
  return Dims(sizes, sizes + rank);
}

Result<int64_t> Hdf5Dataset::checked_length(uint64_t element_bytes) const {
  TWINRUN_ASSIGN(const Dims dims, checked_dims(element_bytes));
  if (dims.size() == 1) return dims[0];
  return Error{fmt::format("has the shape {}; expected one dimension", to_string(dims)), where_,
               ""};
}

Result<TensorType> Hdf5Dataset::tensor_type() const {
  const Quiet quiet;
  const Hdf5Id type(H5Dget_type(id_.get()));
  if (!type.valid()) return hdf5_error("cannot read the element type", where_);
  std::string attribute;
  TWINRUN_ASSIGN(const bool named, has_attribute("dtype"));
  if (named) {
    TWINRUN_ASSIGN(attribute, text("dtype"));
  }
  for (const Storage& storage : storages()) {
    if (H5Tequal(type.get(), storage.file_type) <= 0) continue;
    if (attribute != (storage.attribute == nullptr ? "" : storage.attribute)) continue;
    TWINRUN_ASSIGN(Dims dims, checked_dims(size_of(storage.dtype)));
    return TensorType{storage.dtype, std::move(dims)};
  }
  return Error{fmt::format("has elements of {} with dtype '{}'; allowed: float32, int32, float64, "
                           "uint16 with dtype 'bfloat16', uint8 with dtype 'pred'",
                           describe(type.get()), attribute),
               where_, "rewrite it as one of these, little-endian"};
}

Result<Tensor> Hdf5Dataset::read_tensor(const TensorType& checked) const {
  const Quiet quiet;
  Tensor tensor = Tensor::empty(checked);
  for (const Storage& storage : storages()) {
    if (storage.dtype != checked.dtype) continue;
    if (tensor.elements() != 0 &&
        H5Dread(id_.get(), storage.memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor.raw()) < 0) {
      return hdf5_error("cannot read the data", where_);
    }
  }
  return tensor;
}

std::optional<Hdf5Bytes> Hdf5Dataset::stored_bytes(const TensorType& checked) const {
  const Quiet quiet;
  const Hdf5Id file(H5Iget_file_id(id_.get())), how(H5Dget_create_plist(id_.get()));
  if (!file.valid() || !how.valid() || H5Pget_layout(how.get()) != H5D_CONTIGUOUS) return {};
  const Hdf5Id access(H5Fget_access_plist(file.get())), made(H5Fget_create_plist(file.get()));
  hsize_t user_block = 0;
  if (!access.valid() || H5Pget_driver(access.get()) != H5FD_SEC2 || !made.valid() ||
      H5Pget_userblock(made.get(), &user_block) < 0 || user_block != 0)
    return {};
  void* handle = nullptr;
  const haddr_t begin = H5Dget_offset(id_.get());  // HADDR_UNDEF: nothing was ever written
  const uint64_t bytes = checked.bytes();
  if (begin == HADDR_UNDEF || H5Dget_storage_size(id_.get()) != bytes ||
      bytes > budget_->file_bytes || begin > budget_->file_bytes - bytes ||
      H5Fget_vfd_handle(file.get(), H5P_DEFAULT, &handle) < 0 || handle == nullptr)
    return {};
  return Hdf5Bytes{*static_cast<const int*>(handle), begin};
}

Result<Tensor> Hdf5Dataset::read_tensor() const {
  TWINRUN_ASSIGN(const TensorType type, tensor_type());
  return read_tensor(type);
}

Result<std::vector<int64_t>> Hdf5Dataset::read_i64() const {
  const Quiet quiet;
  const Hdf5Id type(H5Dget_type(id_.get()));
  if (!type.valid()) return hdf5_error("cannot read the element type", where_);
  if (H5Tequal(type.get(), H5T_STD_I64LE) <= 0) {
    return Error{fmt::format("has elements of {}; expected int64", describe(type.get())), where_,
                 ""};
  }
  TWINRUN_ASSIGN(const int64_t length, checked_length(sizeof(int64_t)));
  std::vector<int64_t> values(static_cast<size_t>(length));
  if (length != 0 &&
      H5Dread(id_.get(), H5T_NATIVE_INT64, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) < 0) {
    return hdf5_error("cannot read the data", where_);
  }
  return values;
}

Result<std::vector<std::string>> Hdf5Dataset::read_strings() const {
  const Quiet quiet;
  const Hdf5Id type(H5Dget_type(id_.get()));
  if (!type.valid()) return hdf5_error("cannot read the element type", where_);
  const size_t width = text_length(type.get());
  if (width == 0) return not_text(type.get(), where_);
  TWINRUN_ASSIGN(const int64_t length, checked_length(width));
  const auto count = static_cast<size_t>(length);
  std::vector<char> padded(width * count);
  const Hdf5Id memory = string_type(width);
  if (!memory.valid() || H5Tset_cset(memory.get(), H5Tget_cset(type.get())) < 0) {
    return hdf5_error("cannot read the element type", where_);
  }
  if (count != 0 &&
      H5Dread(id_.get(), memory.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, padded.data()) < 0) {
    return hdf5_error("cannot read the data", where_);
  }
  std::vector<std::string> values(count);
  for (size_t i = 0; i < count; ++i) {
    const char* begin = &padded[i * width];
    values[i].assign(begin, std::find(begin, begin + width, '\0'));
  }
  return values;
}

// ---- files ----

Result<Hdf5File> Hdf5File::open(const std::string& path) {
  start_library();
  const Quiet quiet;
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return Error{fmt::format("cannot open: {}", std::strerror(errno)), path,
                 errno == ENOENT ? "check the name" : "", kind_of_failure(errno)};
  }
  if (!S_ISREG(info.st_mode)) return Error{"is not a regular file", path, "name an HDF5 file"};
  const Hdf5Id access(H5Pcreate(H5P_FILE_ACCESS));
  // Our files are never changed in place, so locks protect nothing, and some file systems have no
  // locks.
  if (!access.valid() || H5Pset_file_locking(access.get(), false, true) < 0) {
    return hdf5_error("cannot prepare to read", path);
  }
  Hdf5Id id(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.get()));
  if (!id.valid()) {
    Error error = hdf5_error("is not a readable HDF5 file", path);
    error.fix = "it is damaged, cut short, or of another format: download or write it again";
    return error;
  }
  const auto bytes = static_cast<uint64_t>(info.st_size);
  return Hdf5File(std::move(id), path, std::make_shared<Hdf5Budget>(Hdf5Budget{bytes, bytes}));
}

}  // namespace twinrun
