// Row numbers of windows. Sources: gather and scatter in the StableHLO specification,
// https://github.com/openxla/stablehlo/blob/main/docs/spec.md.
#include "program/import/indexing.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace twinrun {
namespace {

bool holds(const Dims& list, int64_t value) { return std::ranges::find(list, value) != list.end(); }

void check_each(const Site& s, const Dims& list, int64_t rank, const char* what) {
  for (size_t i = 0; i < list.size(); ++i) {
    const auto begin = list.begin(), here = begin + static_cast<std::ptrdiff_t>(i);
    if (list[i] < 0 || list[i] >= rank || std::find(begin, here, list[i]) != here)
      s.refuse(fmt::format("{}={} of rank {}", what, to_string(list), rank));
  }
}

// Component k of every index, with the dimensions of the indices except the one of components.
ValueId component(Site& s, const Indexing& how, int64_t k) {
  const Dims dims = s.type(1).dims;
  if (how.vector_dim == static_cast<int64_t>(dims.size())) return s.x[1];
  Dims kept = dims;
  kept.erase(kept.begin() + how.vector_dim);
  return s.reshape(s.cut(s.x[1], how.vector_dim, k, k + 1), kept, "component");
}

// The dimension of batch_of that corresponds to operand_batch[k].
int64_t batch_axis(const Indexing& how, size_t k) {
  const int64_t axis = how.indices_batch[k];
  return axis - (axis > how.vector_dim ? 1 : 0);
}

}  // namespace

Dims join_dims(const Dims& a, const Dims& b) {
  Dims out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

Dims inverse(const Dims& permutation) {
  Dims out(permutation.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[static_cast<size_t>(permutation[i])] = static_cast<int64_t>(i);
  return out;
}

Dims Rows::table() const { return join_dims({product(front)}, row); }

void check_indexing(const Site& s, const Indexing& how, const Dims& sizes) {
  const TensorType from = s.type(0), ids = s.type(1);
  if (ids.dtype != DType::kI32)
    s.refuse(fmt::format("indices of {}; allowed: s32", to_string(ids)));
  check_each(s, how.dropped, from.rank(), "collapsed_slice_dims");
  check_each(s, how.indices_batch, ids.rank(), "start_indices_batching_dims");
  check_each(s, join_dims(how.operand_batch, how.indexed), from.rank(),
             "operand_batching_dims and start_index_map");
  const bool implicit = how.vector_dim == ids.rank();
  const int64_t components = implicit ? 1
                             : how.vector_dim >= 0 && how.vector_dim < ids.rank()
                                 ? ids.dims[static_cast<size_t>(how.vector_dim)]
                                 : -1;
  if (components != static_cast<int64_t>(how.indexed.size()) ||
      how.operand_batch.size() != how.indices_batch.size() ||
      holds(how.indices_batch, how.vector_dim))
    s.refuse(fmt::format("index_vector_dim={} of {} for {} indexed dimensions", how.vector_dim,
                         to_string(ids), how.indexed.size()));
  for (size_t d = 0; d < from.dims.size(); ++d) {
    const bool one = holds(how.dropped, static_cast<int64_t>(d)) ||
                     holds(how.operand_batch, static_cast<int64_t>(d));
    if (sizes[d] < 1 || sizes[d] > from.dims[d] || (one && sizes[d] != 1))
      s.refuse(fmt::format("windows of {} of {}", to_string(sizes), to_string(from)));
  }
  const Dims batch = batch_of(s, how);
  for (size_t k = 0; k < how.operand_batch.size(); ++k) {
    if (batch[static_cast<size_t>(batch_axis(how, k))] !=
        from.dims[static_cast<size_t>(how.operand_batch[k])])
      s.refuse("a batching dimension whose sizes differ");
  }
}

Dims kept_dims(const Site& s, const Indexing& how) {
  return other_dims(s.type(0).rank(), join_dims(how.dropped, how.operand_batch));
}

Dims batch_of(const Site& s, const Indexing& how) {
  Dims batch = s.type(1).dims;
  if (how.vector_dim < static_cast<int64_t>(batch.size()))
    batch.erase(batch.begin() + how.vector_dim);
  return batch;
}

std::optional<std::vector<ValueId>> only_start(Site& s, const Indexing& how) {
  if (product(batch_of(s, how)) != 1) return std::nullopt;
  std::vector<ValueId> out(s.type(0).dims.size(), kNoValue);
  for (size_t k = 0; k < how.indexed.size(); ++k)
    out[static_cast<size_t>(how.indexed[k])] =
        s.reshape(component(s, how, static_cast<int64_t>(k)), {}, "start");
  return out;
}

Rows rows_of(Site& s, const Indexing& how, const Dims& sizes, Bounds bounds) {
  const Dims from = s.type(0).dims;
  Rows out;
  out.batch = batch_of(s, how);
  // A dimension that every window covers is no part of a row's number. It is cut where a window is
  // smaller, although no index names it.
  const auto size = [&](int64_t d) { return from[static_cast<size_t>(d)]; };
  const auto part = [&](int64_t d) { return sizes[static_cast<size_t>(d)]; };
  const bool clamped = bounds == Bounds::kClamped;
  out.order = how.operand_batch;
  for (const int64_t d : how.indexed) {
    if (part(d) < size(d) || size(d) == 1 || !clamped) out.order.push_back(d);
  }
  for (int64_t d = 0; d < s.type(0).rank(); ++d) {
    if (!holds(how.operand_batch, d) && !holds(how.indexed, d) && part(d) < size(d))
      out.order.push_back(d);
  }
  for (size_t k = 0; k < out.order.size(); ++k) {
    out.front.push_back(size(out.order[k]));
    if (part(out.order[k]) == 1) continue;
    out.wide.push_back(static_cast<int64_t>(k));
    out.wide_sizes.push_back(part(out.order[k]));
  }
  for (int64_t d = 0; d < s.type(0).rank(); ++d) {
    if (holds(out.order, d)) continue;
    out.order.push_back(d);
    out.row.push_back(size(d));
  }
  // place = ((i0 * n1) + i1) * n2 + ...
  for (size_t k = 0; k < out.front.size(); ++k) {
    const int64_t d = out.order[k], last = size(d) - part(d);
    ValueId i = kNoValue;
    if (k < how.operand_batch.size()) {
      i = s.b.iota(out.batch, batch_axis(how, k), DType::kI32, s.name("iota"));
    } else if (const auto at = std::ranges::find(how.indexed, d); at != how.indexed.end()) {
      const ValueId given = component(s, how, at - how.indexed.begin());
      i = s.bounded(given, last);
      const ValueId same = s.b.compare(CompareKind::kEq, given, i, s.name("inside"));
      out.inside = out.inside == kNoValue ? same : s.logical_and(out.inside, same);
    }
    if (out.places != kNoValue) {
      const ValueId row = s.scalar_like(out.places, static_cast<double>(size(d)), "size");
      out.places = s.b.mul(out.places, row, s.name("row_of"));
    }
    if (i == kNoValue) continue;  // windows start at 0
    out.places = out.places == kNoValue ? i : s.b.add(out.places, i, s.name("place"));
  }
  if (out.places == kNoValue) out.places = s.splat(0, {DType::kI32, out.batch}, "first_row");
  if (out.wide.empty()) return out;
  ValueId offset = kNoValue;
  for (size_t w = 0; w < out.wide.size(); ++w) {
    const auto k = static_cast<size_t>(out.wide[w]);
    const int64_t stride =
        product({out.front.begin() + static_cast<std::ptrdiff_t>(k) + 1, out.front.end()});
    ValueId up = s.b.iota(out.wide_sizes, static_cast<int64_t>(w), DType::kI32, s.name("iota"));
    if (stride != 1)
      up = s.b.mul(up, s.scalar_like(up, static_cast<double>(stride), "stride"), s.name("offset"));
    offset = offset == kNoValue ? up : s.b.add(offset, up, s.name("offsets"));
  }
  const Dims all = join_dims(out.batch, out.wide_sizes);
  Dims leading(out.batch.size()), trailing(out.wide.size());
  std::iota(leading.begin(), leading.end(), 0);
  std::iota(trailing.begin(), trailing.end(), static_cast<int64_t>(leading.size()));
  const ValueId first = s.b.broadcast(out.places, all, leading, s.name("first_rows"));
  offset = s.b.broadcast(offset, all, trailing, s.name("window_rows"));
  out.places = s.b.add(first, offset, s.name("places"));
  return out;
}

Dims arrangement(const Site& s, const Indexing& how, const Rows& rows) {
  const Dims kept = kept_dims(s, how);
  if (kept.size() != how.window_dims.size() || !std::ranges::is_sorted(how.window_dims))
    s.refuse(fmt::format("offset_dims={} for {} window dimensions", to_string(how.window_dims),
                         kept.size()));
  Dims from(rows.batch.size() + kept.size(), -1);
  const auto batch = static_cast<int64_t>(rows.batch.size()),
             wide = static_cast<int64_t>(rows.wide.size()),
             fronts = static_cast<int64_t>(rows.front.size());
  int64_t ones = batch + wide + static_cast<int64_t>(rows.row.size());
  for (size_t w = 0; w < kept.size(); ++w) {
    const int64_t at = std::ranges::find(rows.order, kept[w]) - rows.order.begin();
    const auto place = static_cast<size_t>(how.window_dims[w]);
    if (how.window_dims[w] < 0 || place >= from.size() || from[place] >= 0)
      s.refuse(fmt::format("offset_dims={}", to_string(how.window_dims)));
    const auto several = std::ranges::find(rows.wide, at);
    from[place] = at >= fronts                 ? batch + wide + at - fronts
                  : several != rows.wide.end() ? batch + (several - rows.wide.begin())
                                               : ones++;
  }
  int64_t next = 0;
  for (int64_t& f : from) {
    if (f < 0) f = next++;
  }
  return from;
}

}  // namespace twinrun
