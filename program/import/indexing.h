// What gather and scatter share: an array as a table of rows, and windows of it as row numbers.
//
//   const Rows rows = rows_of(s, how, sizes, Bounds::kClamped);
#pragma once

#include <optional>
#include <vector>

#include "program/import/site.h"

namespace twinrun {

// The attributes of gather and of scatter, with the names of gather's in the comments.
struct Indexing {
  Dims indexed;        // start_index_map: operand dimension of component k of an index
  Dims operand_batch;  // operand_batching_dims, which correspond to indices_batch
  Dims indices_batch;  // start_indices_batching_dims
  int64_t vector_dim;  // index_vector_dim: the dimension of the indices that holds components
  Dims window_dims;    // offset_dims: the result's (or updates') dimensions of the operand's window
  Dims dropped;        // collapsed_slice_dims: of size 1 and not in the result
};

// Throws Unsupported unless the attributes fit operand 0 and the indices, operand 1. `sizes` are
// those of a window, one for each dimension of the operand (slice_sizes).
void check_indexing(const Site& s, const Indexing& how, const Dims& sizes);
// Dimensions of the operand that are in the window: neither dropped nor batched; ascending.
Dims kept_dims(const Site& s, const Indexing& how);
// The dimensions of the indices without the one of components.
Dims batch_of(const Site& s, const Indexing& how);

// The start of the window along each dimension of the operand, kNoValue where it is always 0; or
// nothing if there are several windows.
std::optional<std::vector<ValueId>> only_start(Site& s, const Indexing& how);

// The dimensions that windows cut are moved to the front and merged into one, so that an element of
// a window along them is a row.
struct Rows {
  Dims order;       // the operand's dimensions: those in front first, then the others
  Dims front, row;  // their sizes
  Dims batch;       // batch_of
  Dims wide;        // positions in `front` of dimensions along which a window has several rows
  Dims wide_sizes;  // how many
  ValueId places = kNoValue;  // i32, batch + wide_sizes: row numbers
  ValueId inside = kNoValue;  // pred, batch: whether a window was in range; kNoValue: all are
  Dims table() const;         // all rows and their size
};
// Starts outside are moved in, as gather does, or noted in `inside`, as scatter does.
enum class Bounds { kClamped, kNoted };
Rows rows_of(Site& s, const Indexing& how, const Dims& sizes, Bounds bounds);

// For each dimension of the result (or of the updates): which one of [batch, wide, row, ones] it
// is, where ones are dimensions of size 1 that are in front and stay.
Dims arrangement(const Site& s, const Indexing& how, const Rows& rows);

Dims join_dims(const Dims& a, const Dims& b);
Dims inverse(const Dims& permutation);

}  // namespace twinrun
