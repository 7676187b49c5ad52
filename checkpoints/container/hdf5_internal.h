// Shared by hdf5_file.cc (what both sides need, writing) and hdf5_read.cc (reading); nobody else's.
#pragma once

#include <fmt/format.h>
#include <hdf5.h>

#include <string>
#include <type_traits>

#include "checkpoints/container/hdf5_file.h"

namespace twinrun::hdf5_internal {

static_assert(std::is_same_v<hid_t, int64_t>, "HDF5 1.10 or later");

// HDF5 prints its error stack unless told otherwise, per thread.
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

// Before the first file. HDF5 leaks an object now and then when it fails on a damaged file, and its
// exit handler then complains on stderr; everything of ours is saved and closed without it.
inline void start_library() { [[maybe_unused]] static const herr_t once = H5dont_atexit(); }

// "cannot do this (HDF5: its innermost message)".
Error hdf5_error(const std::string& what, const std::string& where);

inline std::string attribute_place(const std::string& where, const std::string& name) {
  return fmt::format("{} attribute '{}'", where, name);
}

// Marks bytes as handed out.
Status spend(Hdf5Budget& budget, uint64_t bytes, const std::string& where);

std::string describe(hid_t type);  // "float32", "variable-length text"

// How a tensor's elements are stored.
struct Storage {
  DType dtype;
  hid_t file_type;
  hid_t memory_type;
  const char* attribute;  // value of the attribute `dtype`, or nullptr where the type says it all
};
const Storage& storage_of(DType dtype);
std::span<const Storage> storages();

// Without NUL and at least one byte, so that HDF5 can have it.
Hdf5Id string_type(size_t length);

}  // namespace twinrun::hdf5_internal
