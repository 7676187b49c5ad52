// Checkpoint files: a training state as named tensors, with the step and the seed, which fix the
// position in the data and in the random numbers. Engines start from one, and runs record them. The
// files are HDF5, readable with h5py and h5dump alone. Two states are equal if their root digests
// over logical content are equal (FORMAT.md).
//
//   TWINRUN_RETURN_IF_ERROR(write_checkpoint(path, checkpoint));      // atomically
//   auto c = read_checkpoint(path);                                   // every digest verified
//   auto f = CheckpointFile::open(path);                              // reads the header only
//   f->read("conv1/kernel");                                          // one tensor
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "program/base/digest.h"
#include "program/base/result.h"
#include "program/base/tensor.h"

namespace twinrun {

inline constexpr int kContractVersion = 1;  // docs/method/numerics.md, "The version"
inline constexpr int kCheckpointSchema = 1;

struct CheckpointTensor {
  Tensor value;
  std::string role;           // parameter | slot | statistic | counter
  bool replica_axis = false;  // true: the outermost dimension is the replica; their values differ
};

// The run that a checkpoint belongs to.
struct CheckpointOrigin {
  int64_t step = 0;  // training steps done
  uint64_t seed = 0;
  int contract = kContractVersion;
  std::string scenario;         // resolved TOML
  std::string scenario_digest;  // hex
  std::string engine;           // "cpu", "tpu", ... or "" for a snapshot
  int cores = 1;
};

// Everything in a checkpoint but the elements of its tensors.
struct CheckpointHeader : CheckpointOrigin {
  struct Entry {
    TensorType type;
    std::string role;
    bool replica_axis = false;
    Digest digest;  // of the tensor
  };
  std::map<std::string, Entry> tensors;

  // Over (name, type, replica axis, tensor digest) in name order, then step and seed. Engine,
  // cores, roles and scenario do not enter.
  Digest root_digest() const;
};

struct Checkpoint : CheckpointOrigin {
  std::map<std::string, CheckpointTensor> tensors;  // by hierarchical name, "conv1/kernel"

  CheckpointHeader outline() const;  // leaves the tensor digests empty
  CheckpointHeader header() const;   // computes the digest of every tensor
  Digest root_digest() const { return header().root_digest(); }
};

Status write_checkpoint(const std::string& path, const Checkpoint& checkpoint);
// Verifies every digest. Errors name the damaged tensor, the unknown contract or the missing
// attribute.
Result<Checkpoint> read_checkpoint(const std::string& path);

// Reads the elements of one tensor piece by piece, on any thread: of an open checkpoint file, or of
// a tensor in memory.
class TensorReader {
 public:
  explicit TensorReader(Tensor whole) : type_(whole.type()), whole_(std::move(whole)) {}
  const TensorType& type() const { return type_; }
  // Copies the elements [begin, begin + count) to `to`. Error: the file cannot be read.
  Status read(int64_t begin, int64_t count, std::byte* to) const;
  // Whether a file's header has a digest of the elements. Whoever reads them must check it.
  bool has_digest() const { return digest_.has_value(); }
  // Error: the elements of which `found` is the digest are not those that were written.
  Status check(const Digest& found) const;

 private:
  friend class CheckpointFile;
  TensorType type_;
  std::string name_, where_;
  std::optional<Digest> digest_;
  int file_ = -1;  // descriptor of the open file; -1: the elements are in `whole_`
  uint64_t begin_ = 0;
  Tensor whole_;
};

// An open checkpoint file whose tensors are read one at a time. Comparing the digests in its header
// can make reading the tensors unnecessary.
class CheckpointFile {
 public:
  // Verifies the header against its own digests; reads no elements.
  static Result<CheckpointFile> open(const std::string& path);
  ~CheckpointFile();
  CheckpointFile(CheckpointFile&&) noexcept;
  CheckpointFile& operator=(CheckpointFile&&) noexcept;

  const CheckpointHeader& header() const;
  // `name` must be in header().tensors. Verifies the digest of the tensor.
  Result<Tensor> read(const std::string& name) const;
  // The same tensor for reading it in pieces, while the file is open.
  Result<TensorReader> reader(const std::string& name) const;

 private:
  struct Impl;
  explicit CheckpointFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// An error if the checkpoint belongs to another model; it names the first missing, superfluous or
// differently shaped tensor. For a tensor with a replica axis, `expected` may give the whole shape
// or that of one replica.
Status check_same_model(const Checkpoint& checkpoint,
                        const std::map<std::string, TensorType>& expected);

}  // namespace twinrun
