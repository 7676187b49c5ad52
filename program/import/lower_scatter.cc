// scatter of windows of any size. One window is read, changed and written back. Of several, sums
// are added row by row; the other kinds compare each row of the operand with each row that is
// written, which is exact and takes no order for granted.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "program/import/indexing.h"
#include "program/import/slices.h"

namespace twinrun {
namespace {

enum class Combine { kSet, kAdd, kMultiply, kMaximum, kMinimum };

Combine combine_of(const Site& s) {
  const HloComputation* c = s.module.find(text_attribute(s.in, "to_apply"));
  if (c != nullptr && c->parameters.size() == 2 && c->root == c->parameters[1])
    return Combine::kSet;
  const std::string region = s.region();
  if (region == "add") return Combine::kAdd;
  if (region == "multiply") return Combine::kMultiply;
  if (region == "maximum") return Combine::kMaximum;
  if (region == "minimum") return Combine::kMinimum;
  s.refuse(
      fmt::format("scatter by '{}'; allowed: add, multiply, maximum, minimum, or the update itself",
                  region.empty() ? "?" : region));
}

ValueId combined(Site& s, Combine how, ValueId old, ValueId update, std::string_view local) {
  if (how == Combine::kSet) return update;
  if (s.b.type(old).dtype == DType::kPred) {
    const bool either = how == Combine::kAdd || how == Combine::kMaximum;
    return either ? s.logical_or(old, update) : s.logical_and(old, update);
  }
  const OpKind kind = how == Combine::kAdd        ? OpKind::kAdd
                      : how == Combine::kMultiply ? OpKind::kMultiply
                      : how == Combine::kMaximum  ? OpKind::kMaximum
                                                  : OpKind::kMinimum;
  return s.b.binary(kind, old, update, s.name(local));
}

// XLA skips a window that is not inside as a whole.
ValueId one_window(Site& s, Combine how, const std::vector<ValueId>& start, const Dims& sizes) {
  const TensorType to = s.type(0);
  const ValueId update = s.reshape(s.x[2], sizes, "window");
  const auto known = known_starts(s, start);
  ValueId inside = kNoValue;
  for (size_t d = 0; d < start.size(); ++d) {
    const int64_t last = to.dims[d] - sizes[d];
    if (start[d] == kNoValue) continue;
    if (known) {
      if ((*known)[d] < 0 || (*known)[d] > last) return s.x[0];
      continue;
    }
    const ValueId same =
        s.b.compare(CompareKind::kEq, start[d], s.bounded(start[d], last), s.name("inside"));
    inside = inside == kNoValue ? same : s.logical_and(inside, same);
  }
  const ValueId old = how == Combine::kSet ? kNoValue : read_window(s, s.x[0], start, sizes);
  const ValueId out = overwrite_window(s, s.x[0], combined(s, how, old, update, "window"), start);
  return inside == kNoValue ? out : s.b.select(s.spread(inside, to), out, s.x[0], s.name());
}

// The updates as rows, one for each place.
struct Updates {
  Rows rows;
  ValueId values;  // [batch, wide, row]
  Dims dims;       // of values
};

ValueId over_rows(Site& s, const Updates& u, ValueId mask, const Dims& dims) {
  if (s.b.type(mask).dims == dims) return mask;
  Dims leading(static_cast<size_t>(s.b.type(mask).rank()));
  std::iota(leading.begin(), leading.end(), 0);
  return s.b.broadcast(mask, dims, leading, s.name(u.dims == dims ? "inside_rows" : "rows_mask"));
}

// The table of rows, as the operand is arranged.
ValueId restored(Site& s, const Rows& rows, ValueId table) {
  const ValueId all = s.reshape(table, join_dims(rows.front, rows.row), "unrolled");
  return s.transpose(all, inverse(rows.order), "restored");
}

ValueId sums(Site& s, const Updates& u, ValueId values, std::string_view local) {
  if (u.rows.inside != kNoValue) {
    const ValueId mask = over_rows(s, u, u.rows.inside, u.dims);
    const ValueId zeros = s.scalar_like(values, 0, "zero");
    values = s.b.select(mask, values, zeros, s.name("only_inside"));
  }
  const ValueId sum = s.b.scatter_add(u.rows.places, values, u.rows.table(), s.name(local));
  return restored(s, u.rows, sum);
}

ValueId add_windows_up(Site& s, const Updates& u) {
  const ValueId sum = sums(s, u, u.values, "");
  const auto base = splat_of(s.b.graph(), s.x[0]);
  return base && *base == 0 ? sum : s.b.add(s.x[0], sum, s.name("onto"));
}

// Windows that do not meet: what was added to a row is what is written there.
ValueId set_unique(Site& s, const Updates& u) {
  const ValueId sum = sums(s, u, u.values, "");
  const ValueId hits = sums(s, u, s.splat(1, {DType::kI32, u.dims}, "one"), "hits");
  const ValueId zero = s.scalar_like(hits, 0, "zero");
  const ValueId hit = s.b.compare(CompareKind::kGt, hits, zero, s.name("hit"));
  return s.b.select(hit, sum, s.x[0], s.name("onto"));
}

// pred [updates, rows]: whether an update is of a row.
ValueId meets(Site& s, const Updates& u, int64_t updates) {
  ValueId places = u.rows.places;
  if (u.rows.inside != kNoValue) {
    const ValueId mask = over_rows(s, u, u.rows.inside, s.b.type(places).dims);
    const ValueId nowhere = s.scalar_like(places, -1, "nowhere");
    places = s.b.select(mask, places, nowhere, s.name("places_inside"));
  }
  const Dims all = {updates, u.rows.table()[0]};
  const ValueId flat = s.reshape(places, {updates}, "flat");
  const ValueId own = s.b.broadcast(flat, all, {0}, s.name("own_row"));
  const ValueId row = s.b.iota(all, 1, DType::kI32, s.name("row"));
  return s.b.compare(CompareKind::kEq, own, row, s.name("meets"));
}

// Of several updates of a row the last one is kept.
ValueId set_last(Site& s, const Updates& u, int64_t updates) {
  s.note(
      "scatter that overwrites by indices that may be equal keeps the last update, as XLA does on "
      "a "
      "CPU");
  const Dims table = u.rows.table(), row = u.rows.row;
  const ValueId met = meets(s, u, updates);
  const Dims all = s.b.type(met).dims;
  const ValueId number = s.b.iota(all, 0, DType::kF32, s.name("number"));
  const ValueId none = s.scalar_like(number, -1, "none");
  const ValueId candidates = s.b.select(met, number, none, s.name("candidates"));
  const ValueId latest = s.b.reduce(candidates, {0}, Reducer::kMax, s.name("latest"));
  const ValueId ids = s.convert(latest, DType::kI32, "latest_id");
  const ValueId zero = s.scalar_like(ids, 0, "zero");
  const ValueId hit = s.b.compare(CompareKind::kGe, ids, zero, s.name("hit"));
  const ValueId flat = s.reshape(u.values, join_dims({updates}, row), "flat_rows");
  const ValueId taken = s.b.gather(flat, ids, s.name());
  const ValueId written = restored(s, u.rows, taken);
  const ValueId mask = restored(s, u.rows, over_rows(s, u, hit, table));
  return s.b.select(mask, written, s.x[0], s.name("onto"));
}

ValueId extremes(Site& s, Combine how, const Updates& u, int64_t updates) {
  const DType type = s.type(0).dtype;
  if (type == DType::kPred) s.refuse("scatter of pred by several indices; allowed: f32, bf16, s32");
  const Dims all = join_dims({updates}, u.rows.table());
  const ValueId mask = over_rows(s, u, meets(s, u, updates), all);
  Dims to(u.rows.row.size() + 1);  // values [updates, row] in [updates, rows, row]
  std::iota(to.begin(), to.end(), 1);
  to[0] = 0;
  const ValueId flat = s.reshape(u.values, join_dims({updates}, u.rows.row), "flat_rows");
  const ValueId spread = s.b.broadcast(flat, all, to, s.name("spread"));
  const bool whole = type == DType::kI32;
  const double infinity = std::numeric_limits<double>::infinity(),
               least = whole ? std::numeric_limits<int32_t>::min() : -infinity,
               most = whole ? std::numeric_limits<int32_t>::max() : infinity;
  const ValueId neutral = s.splat(how == Combine::kMultiply  ? 1
                                  : how == Combine::kMaximum ? least
                                                             : most,
                                  {type, all}, "neutral");
  const ValueId chosen = s.b.select(mask, spread, neutral, s.name("chosen"));
  const ValueId folded = s.fold(how == Combine::kMultiply  ? OpKind::kMultiply
                                : how == Combine::kMaximum ? OpKind::kMaximum
                                                           : OpKind::kMinimum,
                                chosen);
  return combined(s, how, s.x[0], restored(s, u.rows, folded), "");
}

// Whether all rows are known to be different.
bool are_unique(Site& s, const Rows& rows) {
  if (rows.wide.empty() && text_attribute(s.in, "unique_indices") == "true") return true;
  const KnownValue* places = s.shared().constants.of(rows.places);
  if (places == nullptr || (places->splat() && places->type.elements() > 1)) return false;
  const std::set<double> different(places->numbers.begin(), places->numbers.end());
  return different.size() == places->numbers.size();
}

ValueId scatter(Site& s) {
  s.expect(3);
  const Indexing how{list_attribute(s.in, "scatter_dims_to_operand_dims"),
                     list_attribute(s.in, "input_batching_dims", false),
                     list_attribute(s.in, "scatter_indices_batching_dims", false),
                     number_attribute(s.in, "index_vector_dim"),
                     list_attribute(s.in, "update_window_dims"),
                     list_attribute(s.in, "inserted_window_dims", false)};
  const Combine kind = combine_of(s);
  const TensorType to = s.type(0), updates = s.type(2);
  const Dims kept = kept_dims(s, how);
  Dims sizes(to.dims.size(), 1);
  if (kept.size() != how.window_dims.size() || updates.dtype != to.dtype)
    s.refuse(fmt::format("update_window_dims={} for {} window dimensions",
                         to_string(how.window_dims), kept.size()));
  for (size_t w = 0; w < kept.size(); ++w) {
    if (how.window_dims[w] < 0 || how.window_dims[w] >= updates.rank())
      s.refuse(fmt::format("update_window_dims={}", to_string(how.window_dims)));
    sizes[static_cast<size_t>(kept[w])] = updates.dims[static_cast<size_t>(how.window_dims[w])];
  }
  check_indexing(s, how, sizes);
  const Dims batch = batch_of(s, how);
  if (updates.elements() != product(batch) * product(sizes))
    s.refuse("updates that are not one window for each index");
  const auto start = only_start(s, how);
  if (start && how.operand_batch.empty()) return one_window(s, kind, *start, sizes);
  Updates u;
  u.rows = rows_of(s, how, sizes, Bounds::kNoted);
  u.dims = join_dims(join_dims(u.rows.batch, u.rows.wide_sizes), u.rows.row);
  const Dims from = arrangement(s, how, u.rows);
  if (from.size() != updates.dims.size()) s.refuse("updates of another rank");
  u.values = s.reshape(s.transpose(s.x[2], inverse(from), "arranged"), u.dims, "rows");
  if (kind == Combine::kAdd && to.dtype != DType::kPred) return add_windows_up(s, u);
  const bool numbers = to.dtype != DType::kPred;
  if (kind == Combine::kSet && numbers && are_unique(s, u.rows)) return set_unique(s, u);
  const int64_t count = s.b.type(u.rows.places).elements(), rows = u.rows.table()[0];
  const int64_t width = kind == Combine::kSet ? 1 : product(u.rows.row);
  constexpr int64_t kMax = int64_t{1} << 24;  // from here on f32 cannot count updates either
  if (count > kMax / rows / width)
    s.refuse(fmt::format(
        "scatter of {} updates to {} rows other than by add; allowed: add, unique_indices=true, or "
        "up to {} pairs",
        count, rows, kMax));
  return kind == Combine::kSet ? set_last(s, u, count) : extremes(s, kind, u, count);
}

}  // namespace

void add_scatter(LoweringTable& table) { table["scatter"] = scatter; }

}  // namespace twinrun
