// Internal to the HDF5 layer: shared by hdf5_file.cc (writing, and what all need), hdf5_read.cc
// (reading) and hdf5_foreign.cc (files by other programs).
#pragma once

#include <fmt/format.h>
#include <hdf5.h>

#include <string>
#include <type_traits>

#include "checkpoints/container/hdf5_file.h"

namespace twinrun::hdf5_internal {

static_assert(std::is_same_v<hid_t, int64_t>, "HDF5 1.10 or later");

// Keeps HDF5 from printing its error stack in this thread while an object of this class exists.
class Quiet {
 public:
  Quiet() {
    H5Eget_auto2(H5E_DEFAULT, &function_, &data_);
    H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  }
  ~Quiet() { H5Eset_auto2(H5E_DEFAULT, function_, data_); }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  H5E_auto2_t function_ = nullptr;
  void* data_ = nullptr;
};

// Call before the first file. HDF5 sometimes leaks an object when it fails on a damaged file, and
// its exit handler then complains on stderr. We save and close our files ourselves, so we need no
// handler. Nor does it survive an allocation that fails: it crashes, or ends the process without a
// word. What it needs for its own tables is asked for here, where its lack is std::bad_alloc.
void start_library();

// `what`, followed by the innermost message of HDF5's error stack: "cannot ... (HDF5: ...)".
Error hdf5_error(const std::string& what, const std::string& where);

inline std::string attribute_place(const std::string& where, const std::string& name) {
  return fmt::format("{} attribute '{}'", where, name);
}

// Charges `bytes` to the budget; an error if fewer are left.
Status spend(Hdf5Budget& budget, uint64_t bytes, const std::string& where);

std::string describe(hid_t type);  // "float32", "variable-length text"

// How a tensor's elements are stored.
struct Storage {
  DType dtype;
  hid_t file_type;
  hid_t memory_type;
  const char* attribute;  // value of the attribute `dtype`; nullptr where the type is unambiguous
};
const Storage& storage_of(DType dtype);
std::span<const Storage> storages();

// Fixed-length UTF-8 text, padded with zeros, without a terminating one. At least one byte long,
// since HDF5 has no empty text type.
Hdf5Id string_type(size_t length);

}  // namespace twinrun::hdf5_internal
