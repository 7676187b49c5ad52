// A foreign HDF5 file whole: every dataset as an array named by its path, every attribute that is
// text. Read in a process of its own (isolated.h); links other than hard ones, cycles, compressed or
// chunked data are errors. What a Keras file is, is read off this tree (interchange/keras.h).
//
//   TWINRUN_ASSIGN(Hdf5Tree tree, read_hdf5_tree("w.h5"));           // arrays[0].name: "conv1/kernel:0"
//   tree.texts("layers/dense/vars", "name");                         // nullptr, or a list of texts
//   auto bytes = to_hdf5(tree, path);                                // groups and datasets by name
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
  std::map<std::string, std::map<std::string, std::vector<std::string>>> attributes;  // by group
  std::vector<std::string> ignored;  // attributes of other types

  // `path` "" is the root.
  const std::vector<std::string>* texts(const std::string& path, const std::string& name) const;
  bool has_group(const std::string& path) const { return attributes.contains(path); }
};

Result<Hdf5Tree> read_hdf5_tree(const std::string& path);
Result<Hdf5Tree> parse_hdf5_tree(std::span<const std::byte> bytes, const std::string& where);

// For callers with threads, and for files by programs that nobody vouches for: `file` is read by `reader`, a program that calls
// serve_hdf5_tree. Chunked data may be there too, deflated or shuffled; all of it unpacks to at most `most` bytes.
Result<Hdf5Tree> read_hdf5_tree(const std::vector<std::string>& reader, int file, uint64_t most,
                                const std::string& where);
// Reads its standard input, answers on its standard output (isolated.h). The exit status.
int serve_hdf5_tree(uint64_t most);

// Groups are those of `attributes` and of the arrays' paths. A list of one text stays a list.
// Scalars: the names in `scalars` are written as one text instead.
Result<std::vector<std::byte>> to_hdf5(const Hdf5Tree& tree,
                                       const std::vector<std::string>& scalars,
                                       const std::string& where);

}  // namespace twinrun
