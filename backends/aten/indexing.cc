// Gathers, scatters, advanced indexing, masks and sorts.
#include <algorithm>
#include <numeric>

#include "backends/aten/definitions.h"
#include "backends/aten/totals.h"

namespace twinrun::aten {
namespace {

using Positions = Checked<int64_t>;  // flat, in row-major order of the indexed array

// The tensor that a call left behind: what it wrote, or else its result.
const TensorView& outcome(const Arguments& a) {
  return a.call().written.empty() ? a.result(0) : a.call().written.front();
}
int64_t index_of(int64_t index, int64_t size) {
  const int64_t i = index < 0 ? index + size : index;
  if (i < 0 || i >= size) throw Undefined("an index out of range");
  return i;
}
// A scalar counts as one dimension of size 1.
Dims at_least_one(const Dims& dims) { return dims.empty() ? Dims{1} : dims; }
Array positions_array(const Dims& dims) {
  Array flat = empty_array(dims, true);
  std::iota(flat.value.begin(), flat.value.end(), 0.0);
  return flat;
}
Positions positions_of(const Array& flat) { return {flat.value.begin(), flat.value.end()}; }

// For coordinates that run over `over`: their flat place in an array of `dims`, where index (of the
// shape `over`) replaces the coordinate of the axis. A null index leaves the coordinate.
Positions along(const Arithmetic& m, const Dims& of, int64_t axis, const Dims& over,
                const Positions* index) {
  const Dims dims = at_least_one(of), shape = at_least_one(over);
  if (shape.size() != dims.size()) throw Undefined("an index of another rank");
  Positions out(static_cast<size_t>(allowed_count(shape)));
  in_ranges(m, std::ssize(out), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t flat = 0, step = 1, rest = i;
      for (size_t d = dims.size(); d-- > 0; step *= dims[d]) {
        const bool replaced = index != nullptr && static_cast<int64_t>(d) == axis;
        flat +=
            step * index_of(replaced ? (*index)[static_cast<size_t>(i)] : rest % shape[d], dims[d]);
        rest /= shape[d];
      }
      out[static_cast<size_t>(i)] = flat;
    }
  });
  return out;
}
// As above for a one-dimensional index that selects whole slices.
struct Selection {
  Positions positions;
  Dims dims;
};
Selection slices(const Arithmetic& m, const Dims& of, int64_t dim, const TensorView& index) {
  const Positions chosen = integers_of(index);
  const int64_t axis = axis_of(dim, static_cast<int64_t>(of.size()));
  Dims over = at_least_one(of);
  over[static_cast<size_t>(axis)] = static_cast<int64_t>(chosen.size());
  const int64_t inner = count(over.part(axis + 1));
  const int64_t all = allowed_count(over);
  Positions each;
  for (int64_t i = 0; i < all; ++i)
    each.push_back(chosen[static_cast<size_t>(i / inner % std::ssize(chosen))]);
  Selection s{along(m, of, axis, over, &each), over};
  if (of.empty()) s.dims = {};
  return s;
}

// Writes element i of the source to to[i]. Where several are written to one place any of them may
// be the last one: the one that the call left there counts, if it is one of them.
Array written_to(const Arguments& a, Array out, const Positions& to, const Array& source) {
  if (static_cast<size_t>(source.size()) != to.size()) throw Undefined("values of another shape");
  if (!source.radius.empty() || !out.radius.empty())
    throw Undefined("values with a radius that are written by an index");
  Checked<bool> taken(out.value.size(), false);
  bool twice = false;
  for (size_t i = 0; i < to.size(); ++i) {
    const auto u = static_cast<size_t>(to[i]);
    twice = twice || taken[u];
    taken[u] = true;
    out.value[u] = source.value[i];
  }
  if (!twice) return out;
  // Where the step is evaluated again on other values, nothing was left: the last one counts.
  const TensorView& result = outcome(a);
  if (result.data == nullptr && result.estimate == nullptr) return out;
  const Array left = array_of(result, a.m.pool);
  if (left.dims != out.dims) throw Undefined("a result of another shape");
  for (size_t i = 0; i < to.size(); ++i) {
    const auto u = static_cast<size_t>(to[i]);
    const double x = source.value[i], y = left.value[u];
    if (x == y || (x != x && y != y)) out.value[u] = x;
  }
  return out;
}
// Adds them instead. Kernels may round to the element type after every addition, the same way each
// time: n - 1 of its units for n terms (Rump, Error estimation of floating-point summation and dot
// product, 2012).
Array added_to(const Arguments& a, const Array& self, const Positions& to, const Array& source) {
  if (static_cast<size_t>(source.size()) != to.size()) throw Undefined("values of another shape");
  const Element element = a.view(0, "self").element;
  const double unit = a.m.unit_of(element);
  Array out = self;
  Plane size(out.value.size(), 0.0), given(out.value.size(), 0.0);
  Checked<int64_t> terms(out.value.size(), 1);
  Checked<Equal> equal(out.value.size());
  for (size_t i = 0; i < out.value.size(); ++i) {
    equal[i].add(out.value[i]);
    size[i] = std::fabs(out.value[i]);
    given[i] = self.at(static_cast<int64_t>(i)).radius;
  }
  for (size_t i = 0; i < to.size(); ++i) {
    const auto u = static_cast<size_t>(to[i]);
    const Estimate e = source.at(static_cast<int64_t>(i));
    equal[u].add(e.value);
    out.value[u] += e.value;
    size[u] += std::fabs(e.value);
    given[u] += e.radius;
    ++terms[u];
  }
  if (is_integer(element)) {
    for (double& v : out.value) {
      if (element == Element::kBool) v = v != 0 ? 1 : 0;
      if (!(std::fabs(v) <= 0x1p53)) throw Undefined("integers beyond 2^53");
    }
    return out;
  }
  out.radius = Plane(out.value.size(), 0.0);
  for (size_t i = 0; i < out.value.size(); ++i) {
    const int64_t n = terms[i];
    if (n == 1) out.radius[i] = given[i];
    if (n == 1 || !finite(out.value[i])) continue;
    const double relative = unit > a.m.unit ? static_cast<double>(n - 1) * unit
                                            : a.m.of_sum(n, static_cast<bool>(equal[i]));
    out.radius[i] = given[i] + relative * (size[i] + given[i]) * oracle::kOutward;
    // Results that are denormal may be flushed to zero, those of any of the additions.
    if (size[i] > 0 && size[i] < a.m.smallest * static_cast<double>(n))
      out.radius[i] += a.m.smallest * static_cast<double>(n);
    if (!(size[i] + given[i] < a.m.overflow)) out.radius[i] = kInfinity;
  }
  return out;
}

Expected gather(const Arguments& a) {
  const Array x = a.array(0, "self");
  const TensorView& index = a.view(2, "index");
  const Positions chosen = integers_of(index);
  const int64_t axis = axis_of(a.integer(1, "dim", 0), static_cast<int64_t>(x.dims.size()));
  return gathered(x, along(a.m, x.dims, axis, index.dims, &chosen), index.dims);
}
struct Scatter {
  Array self, source;
  Positions to;
};
Scatter scatter_of(const Arguments& a) {
  Scatter s{a.array(0, "self"), {}, {}};
  const TensorView& index = a.view(2, "index");
  const Positions chosen = integers_of(index);
  const int64_t axis = axis_of(a.integer(1, "dim", 0), static_cast<int64_t>(s.self.dims.size()));
  s.to = along(a.m, s.self.dims, axis, index.dims, &chosen);
  const Value* source = a.find(3, a.has(3, "src") ? "src" : "value");
  if (source != nullptr && source->kind == Value::Kind::kTensor) {
    const Array all = array_of(source->tensor, a.m.pool);
    // The source may be larger than the index.
    const bool one = all.size() == 1;
    s.source = one ? broadcast(reshaped(all, {}), index.dims)
                   : gathered(all, along(a.m, all.dims, axis, index.dims, nullptr), index.dims);
  } else {
    s.source = converted(filled(index.dims, a.number(3, "value", 0)), a.view(0, "self").element);
  }
  return s;
}
Expected scatter(const Arguments& a) {
  if (a.has(SIZE_MAX, "reduce")) throw Undefined("a scatter with a reduction");
  const Scatter s = scatter_of(a);
  return written_to(a, s.self, s.to, s.source);
}
Expected scatter_add(const Arguments& a) {
  const Scatter s = scatter_of(a);
  return added_to(a, s.self, s.to, s.source);
}
// Elements that receive nothing stay as they are; the others may leave out their own value.
Expected scatter_reduce(const Arguments& a) {
  Scatter s = scatter_of(a);
  const std::string how = a.text(4, "reduce", "");
  const bool own = a.flag(SIZE_MAX, "include_self", true);
  if (static_cast<size_t>(s.source.size()) != s.to.size())
    throw Undefined("values of another shape");
  const Element element = a.view(0, "self").element;
  Checked<int64_t> received(s.self.value.size(), 0);
  for (const int64_t to : s.to) ++received[static_cast<size_t>(to)];
  const auto start = [&](double neutral) {
    for (size_t i = 0; i < received.size(); ++i) {
      if (!own && received[i] > 0) s.self.value[i] = neutral;
    }
  };
  if (how == "sum" || how == "mean") {
    const Array before = s.self;
    start(0);
    Array out = added_to(a, s.self, s.to, s.source);
    if (how == "sum") return out;
    if (is_integer(element)) throw Undefined("a mean of integers");
    for (size_t i = 0; i < received.size(); ++i) {
      const auto n = static_cast<double>(received[i] + (own ? 1 : 0));
      const auto at = static_cast<int64_t>(i);
      if (received[i] > 0) out.set(at, a.m.div(out.at(at), exactly(n)));
      // Counts are kept in the element type, which does not hold large ones.
      if (half_unit(element) > 0 && n > 1 / half_unit(element))
        out.set(at, {out.at(at).value, kInfinity});
    }
    return out;
  }
  if (how == "amax" || how == "amin") {
    const double sign = how == "amax" ? 1 : -1;
    start(-sign * kInfinity);
    for (size_t i = 0; i < s.to.size(); ++i) {
      double& v = s.self.value[static_cast<size_t>(s.to[i])];
      v = sign * Arithmetic::max({sign * v}, {sign * s.source.value[i]}).value;
    }
    return std::move(s.self);
  }
  if (how != "prod") throw Undefined("an unknown reduction");
  start(1);
  const double unit = a.m.unit_of(element);
  Checked<Product> products(s.self.value.size(), Product(a.m, element, unit));
  Array out = empty_array(s.self.dims);
  for (int64_t i = 0; i < out.size(); ++i) {
    const auto u = static_cast<size_t>(i);
    const bool counts = own || received[u] == 0;
    out.set(i, counts ? products[u].times(s.self.value[u]) : exactly(1));
  }
  for (size_t i = 0; i < s.to.size(); ++i)
    out.set(s.to[i], products[static_cast<size_t>(s.to[i])].times(s.source.value[i]));
  if (is_integer(element)) {
    for (const double v : out.value) {
      if (!(std::fabs(v) <= 0x1p53)) throw Undefined("integers beyond 2^53");
    }
    out.radius.clear();
  }
  return out;
}
Expected index_select(const Arguments& a) {
  const Array x = a.array(0, "self");
  const Selection s = slices(a.m, x.dims, a.integer(1, "dim", 0), a.view(2, "index"));
  return gathered(x, s.positions, s.dims);
}
Expected index_add(const Arguments& a) {
  const Array self = a.array(0, "self");
  const Selection s = slices(a.m, self.dims, a.integer(1, "dim", 0), a.view(2, "index"));
  const double alpha = a.number(SIZE_MAX, "alpha", 1);
  Array source = a.array(3, "source");
  if (alpha != 1) {
    source = map(
        a.m, [&](Estimate e) { return a.m.mul(a.m.rounded(exactly(alpha)), e); }, source);
  }
  return added_to(a, self, s.positions, source);
}
Expected index_copy(const Arguments& a) {
  const Array self = a.array(0, "self");
  const Selection s = slices(a.m, self.dims, a.integer(1, "dim", 0), a.view(2, "index"));
  return written_to(a, self, s.positions, a.array(3, "source"));
}
Expected index_fill(const Arguments& a) {
  Array self = a.array(0, "self");
  const Selection s = slices(a.m, self.dims, a.integer(1, "dim", 0), a.view(2, "index"));
  const Array value = converted(scalar(a.number(3, "value", 0)), a.view(0, "self").element);
  for (const int64_t to : s.positions) self.value[static_cast<size_t>(to)] = value.value[0];
  return self;
}

// The coordinates of the elements that are not zero, one list a dimension.
Checked<Positions> nonzero_coordinates(const Array& x) {
  Checked<Positions> out(x.dims.size());
  for (int64_t i = 0; i < x.size(); ++i) {
    if (x.at(i).value == 0) continue;
    int64_t rest = i;
    for (size_t d = x.dims.size(); d-- > 0;) {
      out[d].push_back(rest % x.dims[d]);
      rest /= x.dims[d];
    }
  }
  return out;
}
// Advanced indexing: a list of index tensors or None, one a dimension; a mask counts as the
// coordinates of its true elements. The indices broadcast with each other. Their common dimensions
// take the place of the indexed ones if these are next to each other, and come first otherwise.
// `kept_inside`: positions beyond the ends are those of the ends.
Selection advanced(const Arguments& a, const Dims& dims, size_t at = 1, bool kept_inside = false) {
  const Value* list = a.find(at, "indices");
  if (list == nullptr || list->kind != Value::Kind::kList) throw Undefined("no list of indices");
  Checked<std::optional<Array>> indices;
  for (const Value& item : list->items) {
    if (item.kind == Value::Kind::kNone) {
      indices.emplace_back(std::nullopt);
      continue;
    }
    if (item.kind != Value::Kind::kTensor || !is_integer(item.tensor.element))
      throw Undefined("indices that are not integers");
    Array index = array_of(item.tensor, a.m.pool);
    if (item.tensor.element != Element::kBool && item.tensor.element != Element::kU8) {
      indices.emplace_back(std::move(index));
      continue;
    }
    if (index.dims.empty()) throw Undefined("a mask without dimensions");
    for (size_t d = 0; d < index.dims.size(); ++d) {
      const size_t masked = indices.size() + d;
      if (masked >= dims.size() || dims[masked] != index.dims[d])
        throw Undefined("a mask of another shape");
    }
    for (const Positions& coordinates : nonzero_coordinates(index)) {
      Array one = empty_array({std::ssize(coordinates)}, true);
      std::ranges::copy(coordinates, one.value.begin());
      indices.emplace_back(std::move(one));
    }
  }
  if (indices.size() > dims.size()) throw Undefined("more indices than dimensions");
  indices.resize(dims.size());
  Dims common;
  size_t first = dims.size(), last = 0, indexed = 0;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (!indices[d]) continue;
    common = broadcast_dims(common, indices[d]->dims);
    first = std::min(first, d);
    last = d;
    ++indexed;
  }
  if (indexed == 0) throw Undefined("no index");
  if (last - first + 1 != indexed) first = 0;
  // The result is laid out as [before, common, after], each with its offsets into the array.
  Selection s;
  Dims behind;
  for (size_t d = 0; d < dims.size(); ++d)
    if (!indices[d]) (d < first ? s.dims : behind).push_back(dims[d]);
  s.dims.append(common);
  s.dims.append(behind);
  const int64_t all = allowed_count(s.dims);
  if (all == 0) return s;
  Positions before{0}, after{0}, chosen(static_cast<size_t>(count(common)), 0);
  const auto extend = [](Positions& offsets, int64_t size, int64_t stride) {
    Positions longer;
    for (const int64_t offset : offsets) {
      for (int64_t i = 0; i < size; ++i) longer.push_back(offset + i * stride);
    }
    offsets = std::move(longer);
  };
  for (size_t d = 0; d < dims.size(); ++d) {
    const int64_t stride = count(dims.part(static_cast<int64_t>(d) + 1));
    if (indices[d]) {
      const Array index = broadcast(*indices[d], common);
      for (size_t i = 0; i < chosen.size(); ++i) {
        const int64_t given = as_integer(index.value[i]);
        chosen[i] +=
            index_of(kept_inside ? std::clamp<int64_t>(given, 0, dims[d] - 1) : given, dims[d]) *
            stride;
      }
    } else {
      extend(d < first ? before : after, dims[d], stride);
    }
  }
  s.positions.reserve(static_cast<size_t>(all));
  for (const int64_t b : before) {
    for (const int64_t c : chosen) {
      for (const int64_t e : after) s.positions.push_back(b + c + e);
    }
  }
  return s;
}
Expected index(const Arguments& a) {
  const Array x = a.array(0, "self");
  const Selection s = advanced(a, x.dims);
  return gathered(x, s.positions, s.dims);
}
Expected index_put(const Arguments& a) {
  const Array self = a.array(0, "self");
  const Selection s = advanced(a, self.dims);
  const Array values = broadcast(a.array(2, "values"), s.dims);
  if (a.flag(3, "accumulate", false)) return added_to(a, self, s.positions, values);
  return written_to(a, self, s.positions, values);
}

// What compilers make of indices that may lie outside: where the mask is false, `fill` is read and
// nothing is added.
void fill_where_false(const Arguments& a, const Dims& dims, double fill, Array& x) {
  const Array mask = broadcast(a.array(1, "mask"), dims);
  for (size_t i = 0; i < mask.value.size(); ++i) {
    if (mask.value[i] != 0) continue;
    x.value[i] = fill;
    if (!x.radius.empty()) x.radius[i] = 0;
  }
}
Expected masked_index(const Arguments& a) {
  const Array x = a.array(0, "self");
  const Selection s = advanced(a, x.dims, 2, true);
  Array out = gathered(x, s.positions, s.dims);
  fill_where_false(a, s.dims, a.number(3, "fill", 0), out);
  return out;
}
Expected masked_index_put(const Arguments& a) {
  const Array self = a.array(0, "self");
  const Selection s = advanced(a, self.dims, 2, true);
  Array values = broadcast(a.array(3, "values"), s.dims);
  fill_where_false(a, s.dims, 0, values);
  return added_to(a, self, s.positions, values);
}

Expected nonzero(const Arguments& a) {
  const Array x = a.array(0, "self");
  const Checked<Positions> coordinates = nonzero_coordinates(x);
  const int64_t rank = std::ssize(coordinates);
  int64_t n = rank > 0 ? std::ssize(coordinates[0]) : 0;
  if (rank == 0) n = x.at(0).value != 0 ? 1 : 0;
  Array out = empty_array({n, rank}, true);
  for (int64_t i = 0; i < n * rank; ++i) {
    out.value[static_cast<size_t>(i)] = static_cast<double>(
        coordinates[static_cast<size_t>(i % rank)][static_cast<size_t>(i / rank)]);
  }
  return out;
}
Expected masked_select(const Arguments& a) {
  Array x = a.array(0, "self"), mask = a.array(1, "mask");
  const Dims dims = broadcast_dims(x.dims, mask.dims);
  x = broadcast(x, dims);
  mask = broadcast(mask, dims);
  Positions chosen;
  for (int64_t i = 0; i < mask.size(); ++i) {
    if (mask.at(i).value != 0) chosen.push_back(i);
  }
  return gathered(x, chosen, {std::ssize(chosen)});
}
Expected masked_scatter(const Arguments& a) {
  Array x = a.array(0, "self"), mask = a.array(1, "mask");
  const Array source = a.array(2, "source");
  const Dims dims = broadcast_dims(x.dims, mask.dims);
  x = broadcast(x, dims);
  mask = broadcast(mask, dims);
  int64_t next = 0;
  for (int64_t i = 0; i < mask.size(); ++i) {
    if (mask.at(i).value == 0) continue;
    if (next == source.size()) throw Undefined("fewer values than places");
    x.value[static_cast<size_t>(i)] = source.at(next++).value;
  }
  return x;
}
Expected select_scatter(const Arguments& a) {
  const Array self = a.array(0, "self");
  if (self.dims.empty()) throw Undefined("a selection from a scalar");
  const int64_t axis = axis_of(a.integer(2, "dim", 0), static_cast<int64_t>(self.dims.size()));
  const int64_t i = index_of(a.integer(3, "index", 0), self.dims[static_cast<size_t>(axis)]);
  const Array places = sliced(positions_array(self.dims), axis, i, i + 1);
  return written_to(a, self, positions_of(places), a.array(1, "src"));
}
Expected slice_scatter(const Arguments& a) {
  const Array self = a.array(0, "self");
  const Array places =
      sliced(positions_array(self.dims), a.integer(2, "dim", 0), a.integer(3, "start", 0),
             a.integer(4, "end", int64_t{1} << 62), a.integer(5, "step", 1));
  return written_to(a, self, positions_of(places), broadcast(a.array(1, "src"), places.dims));
}
Expected take(const Arguments& a) {
  const Array x = a.array(0, "self");
  Positions index = integers_of(a.view(1, "index"));
  for (int64_t& i : index) i = index_of(i, x.size());
  return gathered(x, index, a.view(1, "index").dims);
}
Expected take_along_dim(const Arguments& a) {
  Array x = a.array(0, "self"), index = a.array(1, "indices");
  if (!a.has(2, "dim")) {
    x.dims = {x.size()};
    index.dims = {index.size()};
  }
  const int64_t axis = axis_of(a.integer(2, "dim", 0), static_cast<int64_t>(x.dims.size()));
  if (x.dims.size() != index.dims.size() || x.dims.empty())
    throw Undefined("an index of another rank");
  Dims all = x.dims, over = index.dims;
  all[static_cast<size_t>(axis)] = over[static_cast<size_t>(axis)] = 1;
  over = all = broadcast_dims(all, over);
  all[static_cast<size_t>(axis)] = x.dims[static_cast<size_t>(axis)];
  over[static_cast<size_t>(axis)] = index.dims[static_cast<size_t>(axis)];
  const Positions chosen = positions_of(broadcast(index, over));
  return gathered(broadcast(x, all), along(a.m, all, axis, over, &chosen), over);
}
Expected one_hot(const Arguments& a) {
  const Positions labels = integers_of(a.view(0, "self"));
  int64_t classes = a.integer(1, "num_classes", -1);
  if (classes < 0 && labels.empty()) throw Undefined("one-hot vectors of no labels");
  if (classes < 0) classes = *std::ranges::max_element(labels) + 1;
  Dims dims = a.view(0, "self").dims;
  dims.push_back(classes);
  Array out = filled(dims, 0);
  for (size_t i = 0; i < labels.size(); ++i) {
    if (labels[i] < 0 || labels[i] >= classes) throw Undefined("a label out of range");
    out.value[i * static_cast<size_t>(classes) + static_cast<size_t>(labels[i])] = 1;
  }
  return out;
}
Expected repeated_indices(const Arguments& a) {
  const Positions repeats = integers_of(a.view(0, "repeats"));
  Array out;
  for (size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i] < 0) throw Undefined("a negative number of repeats");
    allowed_count({out.size() + repeats[i]});
    out.value.insert(out.value.end(), static_cast<size_t>(repeats[i]), static_cast<double>(i));
  }
  out.dims = {out.size()};
  return out;
}

constexpr Definition kIndexingDefinitions[] = {
    {"aten.gather", gather},
    {"aten.scatter", scatter},
    {"aten.scatter_add", scatter_add},
    {"aten.scatter_reduce", scatter_reduce},
    {"aten.index_select", index_select},
    {"aten.index_add", index_add},
    {"aten.index_copy", index_copy},
    {"aten.index_fill", index_fill},
    {"aten.index", index},
    {"aten._unsafe_index", index},
    {"aten.index_put", index_put},
    {"aten._index_put_impl", index_put},
    {"aten._unsafe_index_put", index_put},
    {"aten._unsafe_masked_index", masked_index},
    {"aten._unsafe_masked_index_put_accumulate", masked_index_put},
    {"aten.nonzero", nonzero},
    {"aten.masked_select", masked_select},
    {"aten.masked_scatter", masked_scatter},
    {"aten.select_scatter", select_scatter},
    {"aten.slice_scatter", slice_scatter},
    {"aten.take", take},
    {"aten.take_along_dim", take_along_dim},
    {"aten.one_hot", one_hot},
    {"aten.repeat_interleave.Tensor", repeated_indices},
};

}  // namespace

std::span<const Definition> indexing_definitions() { return kIndexingDefinitions; }

}  // namespace twinrun::aten
