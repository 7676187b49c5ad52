// A small checked layer over the HDF5 C library: every failure is a Result; nothing prints, and
// nothing throws but std::bad_alloc. Files are written in one restricted form: built in memory and
// put in place by write_file_atomically; no times, fixed library bounds (the 1.8 format: all
// metadata carry checksums), contiguous data, no filters, fixed-length strings. So equal content
// makes equal bytes. Reading accepts that form only, whoever wrote the file: no soft or external
// links, no external or virtual storage, no filters, no variable-length strings. Sizes are checked
// against the file's size before anything is allocated. All reads of one open file together may
// return no more bytes than the file has, so read each object once.
//
//   TWINRUN_ASSIGN(Hdf5File file, Hdf5File::create("my.h5"));
//   TWINRUN_ASSIGN(Hdf5Group root, file.root());
//   TWINRUN_RETURN_IF_ERROR(root.set_text("format", "my format"));
//   TWINRUN_ASSIGN(Hdf5Dataset kernel, root.write_tensor("kernel", tensor));
//   TWINRUN_RETURN_IF_ERROR(std::move(file).save());
//
//   TWINRUN_ASSIGN(Hdf5File back, Hdf5File::open("my.h5"));      // then root(), dataset("kernel"),
//   TWINRUN_ASSIGN(Tensor t, kernel.read_tensor());              // read_tensor()
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoints/container/array.h"
#include "program/base/result.h"
#include "program/base/tensor.h"

namespace twinrun {

// One owned HDF5 identifier (hid_t of HDF5 1.10, which is int64_t).
class Hdf5Id {
 public:
  Hdf5Id() = default;
  explicit Hdf5Id(int64_t id) : id_(id) {}
  Hdf5Id(Hdf5Id&& other) noexcept : id_(std::exchange(other.id_, -1)) {}
  Hdf5Id& operator=(Hdf5Id&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Hdf5Id();
  int64_t get() const { return id_; }
  bool valid() const { return id_ >= 0; }

 private:
  int64_t id_ = -1;
};

// How many bytes may still be read from an open file; shared by everything opened through it.
struct Hdf5Budget {
  uint64_t file_bytes = 0;
  uint64_t left = 0;
  bool chunked = false;  // chunked data are accepted too: plain, shuffled or deflated
};

// What groups and datasets share: attributes, and a location for messages ("run.h5:/steps/loss").
class Hdf5Node {
 public:
  const std::string& where() const { return where_; }
  // The object's address in the file, which is the same for every hard link to it.
  Result<uint64_t> address() const;

  // Scalars: UTF-8 of fixed length without zero bytes, int64, uint64, double.
  Status set_text(const std::string& name, std::string_view value);
  Status set_int(const std::string& name, int64_t value);
  Status set_uint(const std::string& name, uint64_t value);
  Status set_real(const std::string& name, double value);
  // A list of texts, each padded to the length of the longest.
  Status set_texts(const std::string& name, std::span<const std::string> values);

  // An absent attribute is an error, and so is one of another type.
  Result<std::string> text(const std::string& name) const;
  Result<int64_t> integer(const std::string& name) const;
  Result<uint64_t> unsigned_integer(const std::string& name) const;
  Result<double> real(const std::string& name) const;
  Result<bool> has_attribute(const std::string& name) const;
  Result<std::vector<std::string>> attributes() const;  // names in order

  // For files by other programs (hdf5_foreign.cc): text of fixed or variable length, a scalar or a
  // list. An empty list of any type gives an empty list; an attribute that is not text gives
  // nothing.
  Result<std::optional<std::vector<std::string>>> foreign_texts(const std::string& name) const;

 protected:
  Hdf5Node(Hdf5Id id, std::string where, std::shared_ptr<Hdf5Budget> budget)
      : id_(std::move(id)), where_(std::move(where)), budget_(std::move(budget)) {}
  Result<Hdf5Id> open_scalar_attribute(const std::string& name) const;
  Status set_scalar(const std::string& name, int64_t file_type, int64_t memory_type,
                    const void* value);
  Status get_scalar(const std::string& name, int64_t type, const char* type_name,
                    void* value) const;

  Hdf5Id id_;
  std::string where_;
  std::shared_ptr<Hdf5Budget> budget_;
};

// Where a file holds the elements of a dataset in one piece.
struct Hdf5Bytes {
  int file;  // descriptor of the open file, which HDF5 closes with it
  uint64_t begin;
};

class Hdf5Dataset : public Hdf5Node {
 public:
  // float32, int32, float64; uint16 with the attribute dtype = "bfloat16"; uint8 with "pred".
  Result<Tensor> read_tensor() const;
  // The same in two steps: the declared type, after checking that the file holds that much data;
  // then the elements. `checked` must come from tensor_type().
  Result<TensorType> tensor_type() const;
  Result<Tensor> read_tensor(const TensorType& checked) const;
  // The place of the same elements, for reading them with pread, on any thread; nullopt where they
  // are not in one piece, or not as they are in memory.
  std::optional<Hdf5Bytes> stored_bytes(const TensorType& checked) const;
  Result<std::vector<int64_t>> read_i64() const;          // rank 1
  Result<std::vector<std::string>> read_strings() const;  // rank 1, zero padding removed

  // For files by other programs (hdf5_foreign.cc): any number or bool of either byte order, and
  // bfloat16 as Keras writes it (two opaque bytes, attribute dtype = "bfloat16").
  Result<NamedArray> read_foreign() const;

 private:
  friend class Hdf5Group;
  using Hdf5Node::Hdf5Node;
  // The shape, after checking that the file holds that many elements of element_bytes each. Charges
  // the bytes to the budget.
  Result<Dims> checked_dims(uint64_t element_bytes) const;
  Result<int64_t> checked_length(uint64_t element_bytes) const;  // the same, for rank 1
};

class Hdf5Group : public Hdf5Node {
 public:
  struct Child {
    std::string name;
    bool is_group;
  };

  // Names are single components: "kernel", not "conv1/kernel".
  Result<Hdf5Group> create_group(const std::string& name);
  Result<Hdf5Dataset> write_tensor(const std::string& name, const Tensor& tensor);
  // In the types that h5py uses, without attributes. bfloat16 is an error: it has no HDF5 type.
  Result<Hdf5Dataset> write_foreign(const std::string& name, const NamedArray& array);
  Result<Hdf5Dataset> write_i64(const std::string& name, std::span<const int64_t> values);
  // All are padded with zeros to the length of the longest.
  Result<Hdf5Dataset> write_strings(const std::string& name, std::span<const std::string> values);

  Result<bool> has(const std::string& name) const;
  Result<Hdf5Group> group(const std::string& name) const;
  Result<Hdf5Dataset> dataset(const std::string& name) const;
  // In name order. Links other than hard ones, and named types, are errors.
  Result<std::vector<Child>> children() const;

 private:
  friend class Hdf5File;
  using Hdf5Node::Hdf5Node;
  std::string below(const std::string& name) const;
  Result<Hdf5Dataset> write(const std::string& name, int64_t file_type, int64_t memory_type,
                            const Dims& dims, const void* data);
  Result<bool> check_child(const std::string& name) const;  // true: a group
};

class Hdf5File {
 public:
  // In memory, or in an unnamed file (image_memory.h); nothing has the path before save().
  static Result<Hdf5File> create(const std::string& path);
  static Result<Hdf5File> open(const std::string& path);
  // The same for a file in memory; `name` is for messages. The bytes are copied. If `unpacked` is
  // not 0, chunked data are accepted (for read_foreign), and all reads together return at most that
  // many bytes.
  static Result<Hdf5File> open_image(std::span<const std::byte> image, const std::string& name,
                                     uint64_t unpacked = 0);

  Result<Hdf5Group> root() const;
  // For created files only: gives the content the path, atomically. It is the last call: nothing may
  // be written to the file afterwards.
  Status save() &&;
  Result<std::vector<std::byte>> image() const;  // the bytes that save() would write

 private:
  Hdf5File(Hdf5Id id, std::string path, std::shared_ptr<Hdf5Budget> budget)
      : id_(std::move(id)), path_(std::move(path)), budget_(std::move(budget)) {}

  Hdf5Id id_;
  std::string path_;
  std::shared_ptr<Hdf5Budget> budget_;
};

}  // namespace twinrun
