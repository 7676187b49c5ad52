// gather of windows of any size: one window as a slice, several as rows of a table.
#include <fmt/format.h>

#include <algorithm>

#include "program/import/indexing.h"
#include "program/import/slices.h"

namespace twinrun {
namespace {

ValueId gather(Site& s) {
  s.expect(2);
  const Indexing how{list_attribute(s.in, "start_index_map"),
                     list_attribute(s.in, "operand_batching_dims", false),
                     list_attribute(s.in, "start_indices_batching_dims", false),
                     number_attribute(s.in, "index_vector_dim"),
                     list_attribute(s.in, "offset_dims"),
                     list_attribute(s.in, "collapsed_slice_dims", false)};
  const Dims sizes = list_attribute(s.in, "slice_sizes");
  if (static_cast<int64_t>(sizes.size()) != s.type(0).rank())
    s.refuse("slice_sizes of another rank");
  check_indexing(s, how, sizes);
  const auto start = only_start(s, how);
  if (start && how.operand_batch.empty() && how.dropped.size() <= how.indexed.size()) {
    // The window's dimensions keep their order, and those of the only index have size 1.
    const ValueId window = read_window(s, s.x[0], *start, sizes);
    return s.reshape(window, s.in.shape.dims, "window");
  }
  const Rows rows = rows_of(s, how, sizes, Bounds::kClamped);
  const Dims from = arrangement(s, how, rows);
  const ValueId table = s.reshape(s.transpose(s.x[0], rows.order), rows.table(), "rows");
  const Dims taken_dims = join_dims(join_dims(rows.batch, rows.wide_sizes), rows.row);
  s.check_size(taken_dims);
  const ValueId taken = s.b.gather(table, rows.places, s.name());
  const ValueId all =
      s.reshape(taken, join_dims(taken_dims, Dims(from.size() - taken_dims.size(), 1)), "ones");
  return s.transpose(all, from, "arranged");
}

}  // namespace

void add_gather(LoweringTable& table) { table["gather"] = gather; }

}  // namespace twinrun
