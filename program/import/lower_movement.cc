// Rules for instructions that move elements without computing: shapes, slices, padding.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "program/import/site.h"

namespace twinrun {
namespace {

void check_axes(const Site& s, const Dims& axes, int64_t rank) {
  for (size_t i = 0; i < axes.size(); ++i) {
    if (axes[i] < 0 || axes[i] >= rank ||
        std::find(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i), axes[i]) !=
            axes.begin() + static_cast<std::ptrdiff_t>(i))
      s.refuse(fmt::format("dimensions={} of rank {}", to_string(axes), rank));
  }
}

ValueId broadcast(Site& s) {
  s.expect(1);
  Dims to = list_attribute(s.in, "dimensions");
  check_axes(s, to, static_cast<int64_t>(s.in.shape.dims.size()));
  if (static_cast<int64_t>(to.size()) != s.type(0).rank())
    s.refuse(fmt::format("dimensions={} of {}", to_string(to), to_string(s.type(0))));
  if (to.size() == s.in.shape.dims.size() && std::ranges::is_sorted(to) &&
      s.type(0).dims == s.in.shape.dims)
    return s.x[0];
  Dims order(to.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](int64_t i) { return to[static_cast<size_t>(i)]; });
  const ValueId x = s.transpose(s.x[0], order);
  std::ranges::sort(to);
  return s.b.broadcast(x, s.in.shape.dims, to, s.name());
}

ValueId reshape(Site& s) {
  s.expect(1);
  return s.reshape(s.x[0], s.in.shape.dims, "");
}

ValueId transpose(Site& s) {
  s.expect(1);
  const Dims permutation = list_attribute(s.in, "dimensions");
  check_axes(s, permutation, s.type(0).rank());
  if (static_cast<int64_t>(permutation.size()) != s.type(0).rank())
    s.refuse(fmt::format("dimensions={} of {}", to_string(permutation), to_string(s.type(0))));
  return s.transpose(s.x[0], permutation, "");
}

ValueId slice(Site& s) {
  s.expect(1);
  const auto rank = static_cast<size_t>(s.type(0).rank());
  const HloSlice cuts = slice_attribute(s.in, rank);
  ValueId x = s.x[0];
  for (size_t i = 0; i < rank; ++i)
    x = s.cut(x, static_cast<int64_t>(i), cuts.start[i], cuts.limit[i], cuts.stride[i]);
  return x;
}

ValueId concatenate(Site& s) {
  const Dims axis = list_attribute(s.in, "dimensions");
  if (axis.size() != 1 || s.x.empty()) s.refuse("concatenate; allowed: dimensions={d}");
  std::vector<ValueId> parts = s.x;
  std::erase_if(parts, [&](ValueId id) { return s.b.type(id).elements() == 0; });
  ValueId x = parts.at(0);
  for (size_t i = 1; i < parts.size(); ++i)
    x = s.b.concatenate(x, parts[i], axis[0], i + 1 == parts.size() ? s.name() : s.name("part"));
  return x;
}

ValueId widened(Site& s, ValueId x, const HloPadding& p) {
  for (size_t i = 0; i < p.low.size(); ++i)
    x = s.widen(x, static_cast<int64_t>(i), p.low[i], p.high[i], p.interior[i]);
  return x;
}

// Our pad op pads zeros. Another value is selected where a mask, padded in the same way, is false.
ValueId pad(Site& s) {
  s.expect(2);
  const HloPadding p = padding_attribute(s.in, static_cast<size_t>(s.type(0).rank()));
  if (!s.type(1).dims.empty()) s.refuse("pad with a value that is not a scalar");
  if (s.type(0).elements() == 0) return s.spread(s.x[1], s.result());
  const auto value = splat_of(s.b.graph(), s.x[1]);
  const ValueId zeros = widened(s, s.x[0], p);
  if ((value && *value == 0 && !std::signbit(*value)) || zeros == s.x[0]) return zeros;
  const ValueId ones = s.splat(1, {DType::kPred, s.type(0).dims}, "true");
  const ValueId real = widened(s, ones, p);
  const ValueId around = s.spread(s.x[1], s.b.type(zeros));
  return s.b.select(real, zeros, around, s.name());
}

ValueId reverse(Site& s) {
  s.expect(1);
  const Dims axes = list_attribute(s.in, "dimensions");
  check_axes(s, axes, s.type(0).rank());
  ValueId x = s.x[0];
  for (int64_t axis : axes) x = s.reverse(x, axis);
  s.note_mirrored(x, {s.x[0], axes});
  return x;
}

ValueId iota(Site& s) {
  s.expect(0);
  const TensorType t = s.result();
  const int64_t axis = number_attribute(s.in, "iota_dimension");
  if (axis < 0 || axis >= t.rank()) s.refuse(fmt::format("iota_dimension={}", axis));
  if (t.dtype == DType::kI32 || t.dtype == DType::kF32)
    return s.b.iota(t.dims, axis, t.dtype, s.name());
  return s.convert(s.b.iota(t.dims, axis, DType::kF32, s.name("as_f32")), t.dtype, "");
}

ValueId same(Site& s) {
  s.expect(1);
  return s.x[0];
}

}  // namespace

void add_movement(LoweringTable& table) {
  table["broadcast"] = broadcast;
  table["reshape"] = reshape;
  table["transpose"] = transpose;
  table["slice"] = slice;
  table["concatenate"] = concatenate;
  table["pad"] = pad;
  table["reverse"] = reverse;
  table["iota"] = iota;
  table["copy"] = same;
}

}  // namespace twinrun
