// gather and scatter of single elements or whole rows: the indexed and batched dimensions of the
// operand are moved to the front and merged into one, the indices become row numbers in it, and our
// ops take or add rows.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "program/import/site.h"

namespace twinrun {
namespace {

bool holds(const Dims& list, int64_t value) { return std::ranges::find(list, value) != list.end(); }

// The attributes of gather and of scatter, with the names of gather's in the comments.
struct Indexing {
  Dims indexed;        // start_index_map: operand dimension of component k of an index
  Dims operand_batch;  // operand_batching_dims, which correspond to indices_batch
  Dims indices_batch;  // start_indices_batching_dims
  int64_t vector_dim;  // index_vector_dim: the dimension of the indices that holds components
  Dims window_dims;    // offset_dims: the result's (or updates') dimensions of the operand's window
  Dims dropped;        // collapsed_slice_dims: of size 1 and not in the result
};

// An operand as rows, and the indices as row numbers.
struct Rows {
  Dims order;       // the operand's dimensions: batched and indexed ones first, then the others
  Dims front, row;  // sizes of those first ones, and of the others
  ValueId places = kNoValue;  // i32, dims of the indices without components: their row numbers
  ValueId inside = kNoValue;  // pred: whether an index was in range; kNoValue: all are
};

void check_each(const Site& s, const Dims& list, int64_t rank, const char* what) {
  for (int64_t v : list) {
    if (v < 0 || v >= rank) s.refuse(fmt::format("{}={} of rank {}", what, to_string(list), rank));
  }
}

// Component k of every index, with the dimensions of the indices except the one of components.
ValueId component(Site& s, ValueId indices, int64_t vector_dim, int64_t k) {
  const Dims dims = s.b.type(indices).dims;
  if (vector_dim == static_cast<int64_t>(dims.size())) return indices;
  Dims kept = dims;
  kept.erase(kept.begin() + vector_dim);
  return s.reshape(s.cut(indices, vector_dim, k, k + 1), kept, "component");
}

Rows rows_of(Site& s, ValueId operand, ValueId indices, const Indexing& how) {
  const TensorType from = s.b.type(operand), ids = s.b.type(indices);
  if (ids.dtype != DType::kI32)
    s.refuse(fmt::format("indices of {}; allowed: s32", to_string(ids)));
  check_each(s, how.indexed, from.rank(), "start_index_map");
  check_each(s, how.operand_batch, from.rank(), "operand_batching_dims");
  check_each(s, how.indices_batch, ids.rank(), "start_indices_batching_dims");
  const bool implicit = how.vector_dim == ids.rank();
  const int64_t components = implicit ? 1
                             : how.vector_dim >= 0 && how.vector_dim < ids.rank()
                                 ? ids.dims[static_cast<size_t>(how.vector_dim)]
                                 : -1;
  if (components != static_cast<int64_t>(how.indexed.size()) ||
      how.operand_batch.size() != how.indices_batch.size())
    s.refuse(fmt::format("index_vector_dim={} of {} for {} indexed dimensions", how.vector_dim,
                         to_string(ids), how.indexed.size()));
  Rows out;
  out.order = how.operand_batch;
  out.order.insert(out.order.end(), how.indexed.begin(), how.indexed.end());
  for (size_t i = 0; i < out.order.size(); ++i) {
    if (std::count(out.order.begin(), out.order.end(), out.order[i]) != 1)
      s.refuse("a dimension that is indexed twice");
    out.front.push_back(from.dims[static_cast<size_t>(out.order[i])]);
  }
  for (int64_t d = 0; d < from.rank(); ++d) {
    if (holds(how.operand_batch, d) || holds(how.indexed, d)) continue;
    out.order.push_back(d);
    out.row.push_back(from.dims[static_cast<size_t>(d)]);
  }
  // place = ((i0 * n1) + i1) * n2 + ...
  Dims batch = ids.dims;
  if (!implicit) batch.erase(batch.begin() + how.vector_dim);
  for (size_t k = 0; k < out.front.size(); ++k) {
    const int64_t last = out.front[k] - 1;
    ValueId i = kNoValue;
    if (k < how.operand_batch.size()) {
      int64_t axis = how.indices_batch[k];
      if (!implicit && axis > how.vector_dim) --axis;
      if (axis < 0 || axis >= static_cast<int64_t>(batch.size()) ||
          batch[static_cast<size_t>(axis)] != out.front[k])
        s.refuse("a batching dimension whose sizes differ");
      i = s.b.iota(batch, axis, DType::kI32, s.name("iota"));
    } else {
      const ValueId given =
          component(s, indices, how.vector_dim, static_cast<int64_t>(k - how.operand_batch.size()));
      i = s.bounded(given, last);
      const ValueId same = s.b.compare(CompareKind::kEq, given, i, s.name("inside"));
      out.inside = out.inside == kNoValue ? same : s.logical_and(out.inside, same);
    }
    if (out.places == kNoValue) {
      out.places = i;
    } else {
      const ValueId size = s.scalar_like(i, static_cast<double>(out.front[k]), "size");
      out.places = s.b.add(s.b.mul(out.places, size, s.name("row_of")), i, s.name("place"));
    }
  }
  if (out.places == kNoValue) s.refuse("no indexed dimension");
  return out;
}

Dims joined(const Dims& a, const Dims& b) {
  Dims out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

// How the result's dimensions follow from [batch, row, ones], where batch are the indices'
// dimensions: result dimension d is dimension out[d] of it. Window dimensions go to window_dims; an
// indexed dimension that is not dropped is one of the ones (size 1).
Dims arrangement(const Site& s, const Indexing& how, const Rows& rows, int64_t operand_rank,
                 size_t batch) {
  Dims kept;
  for (int64_t d = 0; d < operand_rank; ++d) {
    if (!holds(how.dropped, d) && !holds(how.operand_batch, d)) kept.push_back(d);
  }
  if (kept.size() != how.window_dims.size() || !std::ranges::is_sorted(how.window_dims))
    s.refuse(fmt::format("offset_dims={} for {} window dimensions", to_string(how.window_dims),
                         kept.size()));
  const size_t fronts = rows.front.size();
  Dims from(batch + kept.size(), -1);
  int64_t ones = static_cast<int64_t>(batch + rows.row.size());
  for (size_t w = 0; w < kept.size(); ++w) {
    const auto at = std::ranges::find(rows.order, kept[w]) - rows.order.begin();
    const auto place = static_cast<size_t>(how.window_dims[w]);
    if (how.window_dims[w] < 0 || place >= from.size() || from[place] >= 0)
      s.refuse(fmt::format("offset_dims={}", to_string(how.window_dims)));
    from[place] = static_cast<size_t>(at) < fronts
                      ? ones++
                      : static_cast<int64_t>(batch) + at - static_cast<int64_t>(fronts);
  }
  int64_t next = 0;
  for (int64_t& f : from) {
    if (f < 0) f = next++;
  }
  return from;
}

ValueId gather(Site& s) {
  s.expect(2);
  const Indexing how{list_attribute(s.in, "start_index_map"),
                     list_attribute(s.in, "operand_batching_dims", false),
                     list_attribute(s.in, "start_indices_batching_dims", false),
                     number_attribute(s.in, "index_vector_dim"),
                     list_attribute(s.in, "offset_dims"),
                     list_attribute(s.in, "collapsed_slice_dims", false)};
  const Dims sizes = list_attribute(s.in, "slice_sizes");
  const TensorType from = s.type(0);
  if (static_cast<int64_t>(sizes.size()) != from.rank()) s.refuse("slice_sizes of another rank");
  for (int64_t d = 0; d < from.rank(); ++d) {
    const bool single = holds(how.indexed, d) || holds(how.operand_batch, d);
    if (sizes[static_cast<size_t>(d)] != (single ? 1 : from.dims[static_cast<size_t>(d)]))
      s.refuse(fmt::format(
          "gather of slices {} of {}; allowed: 1 along indexed dimensions, all of the others",
          to_string(sizes), to_string(from)));
  }
  const Rows rows = rows_of(s, s.x[0], s.x[1], how);
  const Dims batch = s.b.type(rows.places).dims;
  const Dims from_dims = arrangement(s, how, rows, from.rank(), batch.size());
  const ValueId table =
      s.reshape(s.transpose(s.x[0], rows.order), joined({product(rows.front)}, rows.row), "rows");
  const ValueId taken = s.b.gather(table, rows.places, s.name());
  const size_t ones = from_dims.size() - batch.size() - rows.row.size();
  const ValueId all = s.reshape(taken, joined(joined(batch, rows.row), Dims(ones, 1)), "ones");
  return s.transpose(all, from_dims, "arranged");
}

// Adds or overwrites rows. A row whose index is out of range is left out (XLA skips it).
ValueId scatter(Site& s) {
  s.expect(3);
  const Indexing how{list_attribute(s.in, "scatter_dims_to_operand_dims"),
                     list_attribute(s.in, "input_batching_dims", false),
                     list_attribute(s.in, "scatter_indices_batching_dims", false),
                     number_attribute(s.in, "index_vector_dim"),
                     list_attribute(s.in, "update_window_dims"),
                     list_attribute(s.in, "inserted_window_dims", false)};
  const HloComputation* c = s.module.find(text_attribute(s.in, "to_apply"));
  const bool overwrite = c != nullptr && c->parameters.size() == 2 && c->root == c->parameters[1];
  const std::string region = s.region();
  if (!overwrite && region != "add")
    s.refuse(fmt::format("scatter by '{}'; allowed: add, or the update itself",
                         region.empty() ? "?" : region));
  const TensorType to = s.type(0), updates = s.type(2);
  if (to.dtype == DType::kPred) s.refuse("scatter of pred; allowed: f32, bf16, s32");
  const Rows rows = rows_of(s, s.x[0], s.x[1], how);
  const Dims batch = s.b.type(rows.places).dims;
  if (overwrite && product(batch) != 1 && text_attribute(s.in, "unique_indices") != "true")
    s.refuse(
        "scatter that overwrites by indices that may be equal; allowed: one index, or "
        "unique_indices=true");
  const Dims from = arrangement(s, how, rows, to.rank(), batch.size());
  if (updates.dims.size() != from.size()) s.refuse("updates of another rank");
  Dims back(from.size());  // [batch, row, ones] from the updates' own order
  for (size_t d = 0; d < from.size(); ++d)
    back[static_cast<size_t>(from[d])] = static_cast<int64_t>(d);
  const Dims wanted = joined(batch, rows.row);
  const ValueId arranged = s.transpose(s.x[2], back, "arranged");
  if (s.b.type(arranged).elements() != product(wanted))
    s.refuse("updates of part of a row; allowed: 1 along indexed dimensions, all of the others");
  ValueId dy = s.reshape(arranged, wanted, "rows");
  const auto only_inside = [&](ValueId v) {
    if (rows.inside == kNoValue) return v;
    Dims leading(batch.size());
    std::iota(leading.begin(), leading.end(), 0);
    const Dims dims = s.b.type(v).dims;
    const ValueId mask = dims == batch
                             ? rows.inside
                             : s.b.broadcast(rows.inside, dims, leading, s.name("inside_rows"));
    const ValueId zeros = s.scalar_like(v, 0, "zero");
    return s.b.select(mask, v, zeros, s.name("only_inside"));
  };
  const Dims table = joined({product(rows.front)}, rows.row);
  Dims undo(rows.order.size());
  for (size_t d = 0; d < undo.size(); ++d)
    undo[static_cast<size_t>(rows.order[d])] = static_cast<int64_t>(d);
  const auto scattered = [&](ValueId v, const std::string& local) {
    const ValueId sum = s.b.scatter_add(rows.places, only_inside(v), table, s.name(local));
    return s.transpose(s.reshape(sum, joined(rows.front, rows.row), "unrolled"), undo, "restored");
  };
  const ValueId sum = scattered(dy, "");
  if (!overwrite) {
    const auto base = splat_of(s.b.graph(), s.x[0]);
    return base && *base == 0 ? sum : s.b.add(s.x[0], sum, s.name("onto"));
  }
  const ValueId ones = s.splat(1, {DType::kI32, wanted}, "one");
  const ValueId hits = scattered(ones, "hits");
  const ValueId zero = s.scalar_like(hits, 0, "zero");
  const ValueId hit = s.b.compare(CompareKind::kGt, hits, zero, s.name("hit"));
  return s.b.select(hit, sum, s.x[0], s.name("onto"));
}

}  // namespace

void add_indexing(LoweringTable& table) {
  table["gather"] = gather;
  table["scatter"] = scatter;
}

}  // namespace twinrun
