// What is kept of a training state: named tensors, the step, where data and random numbers stand.
// HDF5, readable with h5py and h5dump alone; identity is the root digest over logical content (FORMAT.md).
//
//   TWINRUN_RETURN_IF_ERROR(write_checkpoint(path, checkpoint));      // temporary name, fsync, rename
//   auto c = read_checkpoint(path);                                   // every digest verified
//   auto f = CheckpointFile::open(path);                              // says what is in it; f->read("conv1/kernel")
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "program/base/digest.h"
#include "program/base/result.h"
#include "program/base/tensor.h"

namespace twinrun {

inline constexpr int kContractVersion = 1;  // docs/numerics.md, "The version"
inline constexpr int kCheckpointSchema = 1;

struct CheckpointTensor {
  Tensor value;
  std::string role;           // parameter | slot | statistic | counter
  bool replica_axis = false;  // true: the outermost dimension counts replicas, whose values differ
};

// Of which run it is.
struct CheckpointOrigin {
  int64_t step = 0;  // steps done
  uint64_t seed = 0;
  int contract = kContractVersion;
  std::string scenario;         // resolved TOML
  std::string scenario_digest;  // hex
  std::string engine;           // "cpu", "tpu", ... or "" for a snapshot
  int cores = 1;
};

// What a checkpoint says of itself, without its elements.
struct CheckpointHeader : CheckpointOrigin {
  struct Entry {
    TensorType type;
    std::string role;
    bool replica_axis = false;
    Digest digest;  // of the tensor
  };
  std::map<std::string, Entry> tensors;

  // Over (name, type, replica axis, tensor digest) in name order, then step and seed. Independent of engine and text.
  Digest root_digest() const;
};

struct Checkpoint : CheckpointOrigin {
  std::map<std::string, CheckpointTensor> tensors;  // by hierarchical name, "conv1/kernel"

  CheckpointHeader outline() const;  // no tensor's digest
  CheckpointHeader header() const;   // digests every tensor
  Digest root_digest() const { return header().root_digest(); }
};

Status write_checkpoint(const std::string& path, const Checkpoint& checkpoint);
// Errors name the damaged tensor, the unknown contract, the missing attribute.
Result<Checkpoint> read_checkpoint(const std::string& path);

// A checkpoint file whose tensors are read one at a time, or not at all: its digests say what they are.
class CheckpointFile {
 public:
  // The header fits its own digests; no element has been read.
  static Result<CheckpointFile> open(const std::string& path);
  ~CheckpointFile();
  CheckpointFile(CheckpointFile&&) noexcept;
  CheckpointFile& operator=(CheckpointFile&&) noexcept;

  const CheckpointHeader& header() const;
  // One of header().tensors, its digest verified.
  Result<Tensor> read(const std::string& name) const;

 private:
  struct Impl;
  explicit CheckpointFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// A checkpoint of another model is an error that names the first missing, superfluous or differently
// shaped tensor. With a replica axis, the whole shape or that of one replica may be expected.
Status check_same_model(const Checkpoint& checkpoint,
                        const std::map<std::string, TensorType>& expected);

}  // namespace twinrun
