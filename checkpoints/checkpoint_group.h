// A checkpoint as an HDF5 group: the root of a checkpoint file, or /checkpoints/STEP of a run file.
// Internal to checkpoints/; FORMAT.md describes the layout.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

#include "checkpoints/checkpoint.h"
#include "checkpoints/container/hdf5_file.h"

namespace twinrun::checkpoint_format {

inline constexpr std::string_view kCheckpointFormat = "twinrun checkpoint";
inline constexpr std::string_view kRunFormat = "twinrun run";
inline constexpr const char* kDamagedFix = "the file is damaged: download or write it again";

Status write_group(Hdf5Group& group, const Checkpoint& checkpoint);
Result<Checkpoint> read_group(const Hdf5Group& group);

// The attributes `format`, `schema` and `contract`. Reading requires the given format and schema
// and the contract of this program, and returns the contract.
Status write_preamble(Hdf5Group& group, std::string_view format, int schema, int contract);
Result<int> read_preamble(const Hdf5Group& group, std::string_view format, int schema);

// An int64 attribute that must be at least `least` and fit into an int.
Result<int> read_int(const Hdf5Node& node, const std::string& name, int least);
Result<Digest> read_digest(const Hdf5Node& node, const std::string& name);
// The first 8 digits, for messages: "a1b2c3d4..".
std::string brief(const Digest& digest);
Status check_digest(const Digest& stored, const Digest& found, std::string_view what,
                    const std::string& where);

inline void add_int(DigestBuilder& builder, int64_t value) {
  builder.add_bytes(&value, sizeof value);
}

// Wraps the public functions of checkpoints/: an exception of the standard library, which is thrown
// when memory runs out, becomes an Error.
template <typename Function>
auto guarded(const std::string& path, Function function) -> std::invoke_result_t<Function> {
  try {
    return function();
  } catch (const std::exception& e) {
    return Error{fmt::format("not enough memory for this file ({})", e.what()), path,
                 "close other programs, or use a machine with more memory", Error::Kind::kMachine};
  }
}

}  // namespace twinrun::checkpoint_format
