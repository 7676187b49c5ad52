// NumPy's files: .npy (format versions 1.0 to 3.0) and .npz, a zip of them. Reading accepts numbers
// and bool, either byte order, C or Fortran order; the result is little-endian and row-major.
// Object arrays are pickles, that is, code, and are refused, as are structured, text and complex
// types. The header's sizes must match the data. Writing uses version 1.0, C order, and a header
// padded to 64 bytes as NumPy does; members of an .npz are stored without compression or times, in
// the given order.
// Source of the format: numpy.lib.format, "Format Version 1.0".
//
//   TWINRUN_ASSIGN(NamedArray images, read_npy("x_train.npy"));           // name: "x_train"
//   TWINRUN_ASSIGN(ArrayFile file, read_npz("mnist.npz", {"x_test"}));    // these members only
//   write_file_atomically(path, *to_npz(arrays, path));
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "checkpoints/container/array.h"

namespace twinrun {

Result<NamedArray> read_npy(const std::string& path);
// All members, or only those named in `only` (without ".npy"), in the file's order. A missing name
// is an error that gives the nearest existing one.
Result<ArrayFile> read_npz(const std::string& path, const std::vector<std::string>& only = {});

Result<NamedArray> parse_npy(std::span<const std::byte> bytes, std::string name,
                             const std::string& where);
Result<ArrayFile> parse_npz(std::span<const std::byte> bytes, const std::string& where,
                            const std::vector<std::string>& only = {});

// bfloat16 is an error, since it has no npy type: convert it first.
Result<std::vector<std::byte>> to_npy(const NamedArray& array, const std::string& where);
Result<std::vector<std::byte>> to_npz(const std::vector<NamedArray>& arrays,
                                      const std::string& where);

}  // namespace twinrun
