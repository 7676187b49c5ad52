// The user's name map (--map): for tensors of ours the name of the array in the foreign file and
// the layout of its elements there. TOML (or JSON of the same shape), one line per tensor:
//   "conv1/kernel" = { name = "features.0.weight", transpose = [2, 3, 1, 0] }
//   "dense1/bias" = "classifier.bias"
// Reading: ours = transpose(reshape(theirs, reshape), transpose), as in NumPy; with `reshape` the
// result is then reshaped to our shape. Writing does the inverse; `shape` is the shape in the file.
//
//   TWINRUN_ASSIGN(NameMap map, read_name_map("torch.toml"));
//   const NameMapEntry* entry = map.find("conv1/kernel");       // nullptr: not in the map
//   TWINRUN_ASSIGN(NamedArray ours, to_our_layout(theirs, *entry, our_dims, where));
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoints/container/array.h"

namespace twinrun {

struct NameMapEntry {
  std::string theirs;
  std::vector<int64_t> transpose;  // permutation of the dimensions; empty: none
  Dims reshape;                    // applied before the transpose; empty: none
  Dims shape;                      // in a written file; empty: `reshape`, or the transpose's result

  bool moves() const { return !transpose.empty() || !reshape.empty(); }
};

struct NameMap {
  std::map<std::string, NameMapEntry> entries;  // by our name
  std::string file;

  const NameMapEntry* find(const std::string& ours) const;
};

Result<NameMap> read_name_map(const std::string& path);
Result<NameMap> parse_name_map(const std::string& text, const std::string& path);

// Apply `entry` to an array that was read or that is to be written. Errors name the shapes that do
// not fit.
Result<NamedArray> to_our_layout(NamedArray theirs, const NameMapEntry& entry, const Dims& ours,
                                 const std::string& where);
Result<NamedArray> to_their_layout(NamedArray ours, const NameMapEntry& entry,
                                   const std::string& where);

}  // namespace twinrun
