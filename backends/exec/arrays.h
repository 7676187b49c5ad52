// The arrays of the engine protocol: writes what a step is given, and reads and checks what it
// returns. Arrays are named like "input/images@0" or "state/dense1/kernel"
// (docs/reference/engine-protocol.md).
#pragma once

#include "backends/core/backend.h"
#include "checkpoints/container/array.h"

namespace twinrun::exec {

// Adds one array NAME if all replicas have the same bits, otherwise one array per replica:
// "NAME@0", "NAME@1" ...
void add_arrays(ArrayFile& file, const std::string& name, std::span<const Tensor> replicas);

// The arrays of a result, which is untrusted input. Errors name the array: it is missing, has
// another dtype or shape, or is there for some replicas only.
class ResultArrays {
 public:
  ResultArrays(ArrayFile file, std::string where);
  Result<std::vector<Tensor>> take(const std::string& name, const TensorType& type,
                                   size_t replicas) const;
  bool has(const std::string& name) const;  // as one array for all replicas, or for any replica
  // An error if there is an array whose name, without "@REPLICA", begins with `prefix` but is not
  // in `names`.
  Status only(const std::string& prefix, const std::vector<std::string>& names) const;

 private:
  const NamedArray* find(const std::string& name) const;
  ArrayFile file_;
  std::string where_;
};

// Reads the file `name` of `folder`. It must be a plain file, not a link, of at most `most` bytes,
// and its name must end in its format: .safetensors, or .h5, which is read in a separate process
// and must not unpack to more than `most` bytes. Errors name `where`.
Result<ArrayFile> read_result(const std::string& folder, const std::string& name, uint64_t most,
                              const std::string& where);

}  // namespace twinrun::exec
