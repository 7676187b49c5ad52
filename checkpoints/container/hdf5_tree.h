// The whole content of a foreign HDF5 file: every dataset as an array named by its path, and every
// text attribute. The file is read in a process of its own (isolated.h). Links other than hard
// ones, cycles, and (unless said otherwise below) compressed or chunked data are errors.
// interchange/keras.h interprets the tree as a Keras file.
//
//   TWINRUN_ASSIGN(Hdf5Tree tree, read_hdf5_tree("w.h5"));
//   tree.arrays[0].name;                                             // "conv1/kernel:0"
//   tree.texts("layers/dense/vars", "name");                         // nullptr, or a list of texts
//   auto bytes = to_hdf5(tree, {"backend"}, path);                   // the content of such a file
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "checkpoints/container/array.h"

namespace twinrun {

struct Hdf5Tree {
  std::vector<NamedArray> arrays;  // in path order
  // By the path of the group, then by name. Every group has an entry.
  std::map<std::string, std::map<std::string, std::vector<std::string>>> attributes;
  std::vector<std::string> ignored;  // attributes of other types

  // The attribute `name` of the group at `path` ("" is the root), or nullptr.
  const std::vector<std::string>* texts(const std::string& path, const std::string& name) const;
  bool has_group(const std::string& path) const { return attributes.contains(path); }
};

Result<Hdf5Tree> read_hdf5_tree(const std::string& path);
Result<Hdf5Tree> parse_hdf5_tree(std::span<const std::byte> bytes, const std::string& where);

// For callers with threads, and for files from untrusted programs. `reader` is a command that calls
// serve_hdf5_tree; it gets the descriptor `file` as its standard input. Chunked data are accepted
// too, deflated or shuffled; all data may unpack to at most `most` bytes.
Result<Hdf5Tree> read_hdf5_tree(const std::vector<std::string>& reader, int file, uint64_t most,
                                const std::string& where);
// The main function of such a command: reads a file from standard input and writes the answer to
// standard output (isolated.h). Returns the exit status.
int serve_hdf5_tree(uint64_t most);

// The file's bytes. Its groups are those in `attributes` and in the arrays' paths. Attributes are
// written as lists, even those of one text; those named in `scalars` become a single text if they
// have exactly one.
Result<std::vector<std::byte>> to_hdf5(const Hdf5Tree& tree,
                                       const std::vector<std::string>& scalars,
                                       const std::string& where);

}  // namespace twinrun
