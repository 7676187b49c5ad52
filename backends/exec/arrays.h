// What a step is asked with, and what came of it, as arrays of the protocol: "input/images@0", "state/dense1/kernel".
#pragma once

#include "backends/core/backend.h"
#include "checkpoints/container/array.h"

namespace twinrun::exec {

// One array where all replicas have the same bits, else one each, "NAME@0" ...
void add_arrays(ArrayFile& file, const std::string& name, std::span<const Tensor> replicas);

// A result, trusted in nothing. Errors name the array: missing, of another dtype or shape, on some replicas only.
class ResultArrays {
 public:
  ResultArrays(ArrayFile file, std::string where);
  Result<std::vector<Tensor>> take(const std::string& name, const TensorType& type,
                                   size_t replicas) const;
  bool has(const std::string& name) const;  // of all replicas, or of any
  // An error where an array's name begins with `prefix` and is none of `names`, of a replica or of all.
  Status only(const std::string& prefix, const std::vector<std::string>& names) const;

 private:
  const NamedArray* find(const std::string& name) const;
  ArrayFile file_;
  std::string where_;
};

// The arrays of a file of `folder`: plain, no link, of at most `most` bytes, in the format that its name ends in: .safetensors,
// or .h5, which is read in a process of its own and unpacks to no more than `most` either. Errors name `where`.
Result<ArrayFile> read_result(const std::string& folder, const std::string& name, uint64_t most,
                              const std::string& where);

}  // namespace twinrun::exec
