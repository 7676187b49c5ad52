// Views, copies, concatenations and other moves, whose results are elements of their arguments.
#include <algorithm>
#include <numeric>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

int64_t rank_of(const Array& x) { return static_cast<int64_t>(x.dims.size()); }
int64_t& size_at(Dims& dims, int64_t axis) { return dims[static_cast<size_t>(axis)]; }
int64_t size_at(const Dims& dims, int64_t axis) { return dims[static_cast<size_t>(axis)]; }

// The element of the result at coordinates `at` is the one of x at the coordinates that
// from(at, source) leaves in `source`, which it is given with those of `at`; an exact zero where a
// coordinate lies outside of x.
template <typename F>
Array moved(const Arithmetic& m, const Array& x, const Dims& dims, F from) {
  Array out = empty_array(dims, x.exact());
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    Dims at(dims.size(), 0), source;
    for (size_t d = dims.size(), rest = static_cast<size_t>(begin); d-- > 0;) {
      at[d] = static_cast<int64_t>(rest) % dims[d];
      rest /= static_cast<size_t>(dims[d]);
    }
    for (int64_t i = begin; i < end; ++i) {
      source.assign(at.begin(), at.end());
      from(at, source);
      int64_t flat = 0;
      for (size_t d = 0; d < source.size() && flat >= 0; ++d) {
        const bool inside = source[d] >= 0 && source[d] < x.dims[d];
        flat = inside ? flat * x.dims[d] + source[d] : -1;
      }
      const auto to = static_cast<size_t>(i), of = static_cast<size_t>(flat);
      out.value[to] = flat < 0 ? 0.0 : x.value[of];
      if (!x.exact()) out.radius[to] = flat < 0 ? 0.0 : x.radius[of];
      for (size_t d = dims.size(); d-- > 0;) {
        if (++at[d] < dims[d]) break;
        at[d] = 0;
      }
    }
  });
  return out;
}

// Sizes of which one may be -1: what the others leave.
Dims inferred(Dims dims, int64_t elements) {
  const auto unknown = std::ranges::find_if(dims, [](int64_t d) { return d < 0; });
  if (unknown == dims.end()) return dims;
  *unknown = 1;
  const int64_t known = count(dims);
  *unknown = known == 0 ? 0 : elements / known;
  return dims;
}
Array without_axis(Array x, int64_t axis) {
  Dims dims = x.dims;
  dims.drop(axis);
  return reshaped(std::move(x), std::move(dims));
}
Array with_axis(Array x, int64_t axis) {
  Dims dims = x.dims;
  dims.put(axis, 1);
  return reshaped(std::move(x), std::move(dims));
}
int64_t index_of(int64_t index, int64_t size) {
  const int64_t i = index < 0 ? index + size : index;
  if (i < 0 || i >= size) throw Undefined("an index out of range");
  return i;
}
Array selected(const Array& x, int64_t axis, int64_t index) {
  const int64_t i = index_of(index, size_at(x.dims, axis));
  return without_axis(sliced(x, axis, i, i + 1), axis);
}
Array swapped(const Array& x, int64_t a, int64_t b) {
  if (x.dims.empty()) return x;
  Dims order(x.dims.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::swap(size_at(order, axis_of(a, rank_of(x))), size_at(order, axis_of(b, rank_of(x))));
  return permuted(x, order);
}

Expected same(const Arguments& a) { return a.array(0, "self"); }
Expected given(const Arguments&) {
  Expected e;
  e.results.emplace_back(std::nullopt);
  return e;
}
Expected reinterpreted(const Arguments&) { throw Undefined("a view as another element type"); }

Expected t(const Arguments& a) {
  const Array x = a.array(0, "self");
  return rank_of(x) < 2 ? x : swapped(x, 0, 1);
}
Expected transpose(const Arguments& a) {
  return swapped(a.array(0, "self"), a.integer(1, "dim0", 0), a.integer(2, "dim1", 0));
}
Expected matrix_transpose(const Arguments& a) { return swapped(a.array(0, "self"), -2, -1); }
Expected reverse_dimensions(const Arguments& a) {
  const Array x = a.array(0, "self");
  Dims order(x.dims.size());
  std::iota(order.rbegin(), order.rend(), int64_t{0});
  return permuted(x, order);
}
Expected permute(const Arguments& a) {
  const Array x = a.array(0, "self");
  Dims order = a.integers(1, "dims", {});
  if (order.size() != x.dims.size()) throw Undefined("a permutation of another rank");
  for (int64_t& d : order) d = axis_of(d, rank_of(x));
  return permuted(x, order);
}
Expected movedim(const Arguments& a) {
  const Array x = a.array(0, "self");
  const Dims from = a.integers(1, "source", {}), to = a.integers(2, "destination", {});
  if (from.size() != to.size()) throw Undefined("source and destination of different lengths");
  Dims order(x.dims.size(), -1), rest(x.dims.size());
  std::iota(rest.begin(), rest.end(), int64_t{0});
  for (size_t i = 0; i < from.size(); ++i) {
    const int64_t source = axis_of(from[i], rank_of(x));
    size_at(order, axis_of(to[i], rank_of(x))) = source;
    std::erase(rest, source);
  }
  auto next = rest.begin();
  for (int64_t& d : order) {
    if (d < 0) d = *next++;
  }
  return permuted(x, order);
}
Expected view(const Arguments& a) {
  Array x = a.array(0, "self");
  const std::string_view name = a.call().op.starts_with("aten.reshape") ? "shape" : "size";
  Dims dims = inferred(a.integers(1, name, {}), x.size());
  return reshaped(std::move(x), std::move(dims));
}
Expected view_as(const Arguments& a) { return reshaped(a.array(0, "self"), a.view(1).dims); }
Expected expand(const Arguments& a) {
  const Array x = a.array(0, "self");
  Dims dims = a.integers(1, "size", {});
  if (dims.size() < x.dims.size()) throw Undefined("an expansion to fewer dimensions");
  const size_t lead = dims.size() - x.dims.size();
  for (size_t d = lead; d < dims.size(); ++d) {
    if (dims[d] < 0) dims[d] = x.dims[d - lead];
  }
  return broadcast(x, dims);
}
Expected expand_as(const Arguments& a) { return broadcast(a.array(0, "self"), a.view(1).dims); }
Expected flatten(const Arguments& a) {
  Array x = a.array(0, "self");
  if (x.dims.empty()) return reshaped(std::move(x), {1});
  const int64_t first = axis_of(a.integer(1, "start_dim", 0), rank_of(x));
  const int64_t last = axis_of(a.integer(2, "end_dim", -1), rank_of(x));
  if (last < first) throw Undefined("an empty range of dimensions");
  Dims dims = x.dims.part(0, first);
  dims.push_back(count(x.dims.part(first, last + 1)));
  dims.append(x.dims.part(last + 1));
  return reshaped(std::move(x), std::move(dims));
}
Expected unsqueeze(const Arguments& a) {
  Array x = a.array(0, "self");
  const int64_t axis = axis_of(a.integer(1, "dim", 0), rank_of(x) + 1);
  return with_axis(std::move(x), axis);
}
// All dimensions of size 1, or those of the given ones that have size 1.
Expected squeeze(const Arguments& a) {
  Array x = a.array(0, "self");
  Checked<bool> asked(x.dims.size(), !a.has(1, "dim"));
  for (const int64_t d : a.integers(1, "dim", {})) {
    if (!x.dims.empty()) asked[static_cast<size_t>(axis_of(d, rank_of(x)))] = true;
  }
  Dims dims;
  for (size_t d = 0; d < x.dims.size(); ++d) {
    if (!asked[d] || x.dims[d] != 1) dims.push_back(x.dims[d]);
  }
  return reshaped(std::move(x), std::move(dims));
}

Expected to_copy(const Arguments& a) {
  Array x = a.array(0, "self");
  const Element to = a.result(0).element;
  if (!is_integer(to) || to == Element::kBool) return converted(std::move(x), to);
  // What a number beyond the range becomes is not defined, and was not meant to be used: it is taken as
  // it was given. The bucket of distance 0 of a relative position is the logarithm of 0.
  Array given;
  for (size_t i = 0; i < x.value.size(); ++i) {
    if (fits(x.value[i], to)) continue;
    if (given.value.empty()) given = array_of(a.result(0), a.m.pool);
    x.value[i] = given.value[i];
  }
  if (given.value.empty()) return converted(std::move(x), to);
  for (double& v : x.value) v = std::trunc(v);
  x.radius.clear();
  return x;
}
// Writes the source into self, in the element type of self.
Expected copy(const Arguments& a) {
  const TensorView& self = a.view(0, "self");
  return converted(broadcast(a.array(1, "src"), self.dims), self.element);
}

Expected slice(const Arguments& a) {
  constexpr int64_t kEnd = int64_t{1} << 62;
  return sliced(a.array(0, "self"), a.integer(1, "dim", 0), a.integer(2, "start", 0),
                a.integer(3, "end", kEnd), a.integer(4, "step", 1));
}
Expected narrow(const Arguments& a) {
  const Array x = a.array(0, "self");
  const int64_t axis = axis_of(a.integer(1, "dim", 0), rank_of(x));
  if (x.dims.empty()) throw Undefined("a slice of a scalar");
  int64_t start = a.integer(2, "start", 0);
  if (start < 0) start += size_at(x.dims, axis);
  return sliced(x, axis, start, start + a.integer(3, "length", 0));
}
Expected select(const Arguments& a) {
  const Array x = a.array(0, "self");
  if (x.dims.empty()) throw Undefined("a selection from a scalar");
  return selected(x, axis_of(a.integer(1, "dim", 0), rank_of(x)), a.integer(2, "index", 0));
}
Expected diagonal(const Arguments& a) {
  const Array x = a.array(0, "self");
  const int64_t offset = a.integer(1, "offset", 0);
  const int64_t row = axis_of(a.integer(2, "dim1", 0), rank_of(x));
  const int64_t column = axis_of(a.integer(3, "dim2", 1), rank_of(x));
  if (rank_of(x) < 2 || row == column) throw Undefined("a diagonal of fewer than two dimensions");
  Dims dims;
  for (int64_t d = 0; d < rank_of(x); ++d) {
    if (d != row && d != column) dims.push_back(size_at(x.dims, d));
  }
  const int64_t down = std::max<int64_t>(-offset, 0), right = std::max<int64_t>(offset, 0);
  dims.push_back(
      std::max<int64_t>(0, std::min(size_at(x.dims, row) - down, size_at(x.dims, column) - right)));
  return moved(a.m, x, dims, [&](const Dims& at, Dims& from) {
    from.clear();
    size_t next = 0;
    for (int64_t d = 0; d < rank_of(x); ++d)
      from.push_back(d == row ? at.back() + down : d == column ? at.back() + right : at[next++]);
  });
}
Expected diag_embed(const Arguments& a) {
  const Array x = a.array(0, "self");
  const int64_t offset = a.integer(1, "offset", 0), rank = rank_of(x) + 1;
  const int64_t row = axis_of(a.integer(2, "dim1", -2), rank);
  const int64_t column = axis_of(a.integer(3, "dim2", -1), rank);
  if (x.dims.empty() || row == column) throw Undefined("a diagonal of fewer than two dimensions");
  const int64_t down = std::max<int64_t>(-offset, 0), right = std::max<int64_t>(offset, 0);
  Dims dims;
  size_t next = 0;
  for (int64_t d = 0; d < rank; ++d)
    dims.push_back(d == row || d == column ? x.dims.back() + down + right : x.dims[next++]);
  return moved(a.m, x, dims, [&](const Dims& at, Dims& from) {
    from.clear();
    for (int64_t d = 0; d < rank; ++d) {
      if (d != row && d != column) from.push_back(size_at(at, d));
    }
    const int64_t i = size_at(at, row) - down;
    from.push_back(i == size_at(at, column) - right ? i : -1);
  });
}
// Windows of `size` elements along a dimension, as a last dimension.
Expected unfold(const Arguments& a) {
  const Array x = a.array(0, "self");
  if (x.dims.empty()) throw Undefined("windows of a scalar");
  const int64_t axis = axis_of(a.integer(1, "dimension", 0), rank_of(x));
  const int64_t size = a.integer(2, "size", 1), step = a.integer(3, "step", 1);
  Dims dims = x.dims;
  if (step < 1 || size > size_at(dims, axis)) throw Undefined("windows that do not fit");
  size_at(dims, axis) = (size_at(dims, axis) - size) / step + 1;
  dims.push_back(size);
  return moved(a.m, x, dims, [&](const Dims& at, Dims& from) {
    from.pop_back();
    size_at(from, axis) = size_at(from, axis) * step + at.back();
  });
}

Expected cat(const Arguments& a) {
  return concatenated(a.arrays(0, "tensors"), a.integer(1, "dim", 0));
}
Expected stack(const Arguments& a) {
  Checked<Array> parts = a.arrays(0, "tensors");
  if (parts.empty()) throw Undefined("a stack of no tensors");
  const int64_t axis = axis_of(a.integer(1, "dim", 0), rank_of(parts[0]) + 1);
  for (Array& part : parts) part = with_axis(std::move(part), axis);
  return concatenated(parts, axis);
}
// Before memory is taken for so many results.
void need_results(const Arguments& a, int64_t pieces) {
  Checked<const TensorView*> given;
  collect(a.call().result, given);
  if (pieces > std::ssize(given)) throw Undefined("more pieces than the call returned");
}
Expected in_pieces(const Array& x, int64_t axis, const Dims& sizes) {
  Expected e;
  int64_t begin = 0;
  for (const int64_t size : sizes) {
    e.results.emplace_back(sliced(x, axis, begin, begin + size));
    begin += size;
  }
  return e;
}
Dims pieces_of(const Arguments& a, int64_t n, int64_t size) {
  if (size < 1) return {n};
  need_results(a, (n + size - 1) / size);
  Dims sizes;
  for (int64_t begin = 0; begin < std::max<int64_t>(n, 1); begin += size)
    sizes.push_back(std::min(size, n - begin));
  return sizes;
}
Expected split(const Arguments& a) {
  const Array x = a.array(0, "self");
  const int64_t axis = axis_of(a.integer(2, "dim", 0), rank_of(x));
  const Value* size = a.find(1, "split_size");
  if (x.dims.empty()) throw Undefined("a split of a scalar");
  if (size != nullptr && size->kind == Value::Kind::kList)
    return in_pieces(x, axis, a.integers(1, "split_size", {}));
  return in_pieces(x, axis, pieces_of(a, size_at(x.dims, axis), a.integer(1, "split_size", 0)));
}
Expected chunk(const Arguments& a) {
  const Array x = a.array(0, "self");
  const int64_t axis = axis_of(a.integer(2, "dim", 0), rank_of(x));
  const int64_t chunks = a.integer(1, "chunks", 1);
  if (x.dims.empty() || chunks < 1) throw Undefined("a split of a scalar, or into no chunks");
  const int64_t n = size_at(x.dims, axis);
  if (n == 0) need_results(a, chunks);
  if (n == 0) return in_pieces(x, axis, Dims(static_cast<size_t>(chunks), 0));
  return in_pieces(x, axis, pieces_of(a, n, (n + chunks - 1) / chunks));
}
Expected unbind(const Arguments& a) {
  const Array x = a.array(0, "self");
  if (x.dims.empty()) throw Undefined("a selection from a scalar");
  const int64_t axis = axis_of(a.integer(1, "dim", 0), rank_of(x));
  need_results(a, size_at(x.dims, axis));
  Expected e;
  for (int64_t i = 0; i < size_at(x.dims, axis); ++i) e.results.emplace_back(selected(x, axis, i));
  return e;
}

Expected flip(const Arguments& a) {
  const Array x = a.array(0, "self");
  if (x.dims.empty()) return x;
  Dims axes = a.integers(1, "dims", {});
  for (int64_t& d : axes) d = axis_of(d, rank_of(x));
  return moved(a.m, x, x.dims, [&](const Dims&, Dims& at) {
    for (const int64_t d : axes) size_at(at, d) = size_at(x.dims, d) - 1 - size_at(at, d);
  });
}
Array rolled(const Arithmetic& m, const Array& x, const Dims& shifts, const Dims& axes) {
  return moved(m, x, x.dims, [&](const Dims&, Dims& at) {
    for (size_t i = 0; i < axes.size(); ++i) {
      const int64_t axis = axis_of(axes[i], rank_of(x)), n = size_at(x.dims, axis);
      size_at(at, axis) = remainder(remainder(size_at(at, axis) - shifts[i], n) + n, n);
    }
  });
}
Expected roll(const Arguments& a) {
  Array x = a.array(0, "self");
  const Dims shifts = a.integers(1, "shifts", {}), axes = a.integers(2, "dims", {});
  if (x.size() == 0 || x.dims.empty()) return x;
  if (axes.empty() && shifts.size() == 1) {
    Dims dims = x.dims;
    const int64_t n = x.size();
    return reshaped(rolled(a.m, reshaped(std::move(x), {n}), shifts, {0}), std::move(dims));
  }
  if (axes.size() != shifts.size()) throw Undefined("shifts and dimensions of different lengths");
  return rolled(a.m, x, shifts, axes);
}
Expected repeat(const Arguments& a) {
  const Array x = a.array(0, "self");
  Dims dims = a.integers(1, "repeats", {});
  if (dims.size() < x.dims.size()) throw Undefined("fewer repeats than dimensions");
  const size_t lead = dims.size() - x.dims.size();
  for (size_t d = 0; d < x.dims.size(); ++d) dims[lead + d] *= x.dims[d];
  return moved(a.m, x, dims, [&](const Dims&, Dims& from) {
    from = from.part(static_cast<int64_t>(lead));
    for (size_t d = 0; d < from.size(); ++d) from[d] %= x.dims[d];
  });
}
Array triangle(const Arguments& a, bool lower) {
  Array x = a.array(0, "self");
  const int64_t diagonal = a.integer(1, "diagonal", 0), rank = rank_of(x);
  if (rank < 2) throw Undefined("a triangle of fewer than two dimensions");
  const int64_t rows = size_at(x.dims, rank - 2), columns = size_at(x.dims, rank - 1);
  in_ranges(a.m, x.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = i / columns % rows, column = i % columns;
      const bool kept = lower ? column - row <= diagonal : column - row >= diagonal;
      if (!kept) x.value[static_cast<size_t>(i)] = 0;
    }
  });
  return x;
}
Expected tril(const Arguments& a) { return triangle(a, true); }
Expected triu(const Arguments& a) { return triangle(a, false); }

// Gradients of moves: zeros, with the gradient at the elements that were moved.
Expected select_backward(const Arguments& a) {
  const Array dy = a.array(0, "grad_output");
  const Dims dims = a.integers(1, "input_sizes", {});
  const int64_t axis = axis_of(a.integer(2, "dim", 0), static_cast<int64_t>(dims.size()));
  const Array row = with_axis(dy, axis);
  const int64_t index = index_of(a.integer(3, "index", 0), size_at(dims, axis));
  return moved(a.m, row, dims, [&](const Dims&, Dims& at) { size_at(at, axis) -= index; });
}
Expected slice_backward(const Arguments& a) {
  const Array dy = a.array(0, "grad_output");
  const Dims dims = a.integers(1, "input_sizes", {});
  const int64_t axis = axis_of(a.integer(2, "dim", 0), static_cast<int64_t>(dims.size()));
  const int64_t n = size_at(dims, axis), step = a.integer(5, "step", 1);
  int64_t start = a.integer(3, "start", 0);
  start = std::clamp<int64_t>(start < 0 ? start + n : start, 0, n);
  // The size of dy says where the slice ends.
  return moved(a.m, dy, dims, [&](const Dims&, Dims& at) {
    const int64_t past = size_at(at, axis) - start;
    size_at(at, axis) = past < 0 || remainder(past, step) != 0 ? -1 : quotient(past, step);
  });
}
Expected diagonal_backward(const Arguments& a) {
  const Array dy = a.array(0, "grad_output");
  const Dims dims = a.integers(1, "input_sizes", {});
  const auto rank = static_cast<int64_t>(dims.size());
  const int64_t offset = a.integer(2, "offset", 0);
  const int64_t row = axis_of(a.integer(3, "dim1", 0), rank);
  const int64_t column = axis_of(a.integer(4, "dim2", 1), rank);
  if (rank < 2 || row == column) throw Undefined("a diagonal of fewer than two dimensions");
  return moved(a.m, dy, dims, [&](const Dims& at, Dims& from) {
    from.clear();
    for (int64_t d = 0; d < rank; ++d) {
      if (d != row && d != column) from.push_back(size_at(at, d));
    }
    const int64_t down = size_at(at, row) - std::max<int64_t>(-offset, 0);
    from.push_back(down == size_at(at, column) - std::max<int64_t>(offset, 0) ? down : -1);
  });
}
// `pad` has the elements to add before and behind, the last dimension first; negative ones crop.
Expected constant_pad(const Arguments& a) {
  const Array x = a.array(0, "self");
  const Dims pad = a.integers(1, "pad", {});
  const Array value = converted(scalar(a.number(2, "value", 0)), a.view(0, "self").element);
  if (pad.size() % 2 != 0 || pad.size() > 2 * x.dims.size()) throw Undefined("an odd padding");
  Dims dims = x.dims, before(x.dims.size(), 0);
  for (size_t i = 0; 2 * i < pad.size(); ++i) {
    const size_t d = dims.size() - 1 - i;
    before[d] = pad[2 * i];
    dims[d] += pad[2 * i] + pad[2 * i + 1];
  }
  const auto shift = [&](const Dims&, Dims& at) {
    for (size_t d = 0; d < at.size(); ++d) at[d] -= before[d];
  };
  Array out = moved(a.m, x, dims, shift);
  if (value.value[0] == 0) return out;
  const Array inside = moved(a.m, filled(x.dims, 1), dims, shift);
  for (size_t i = 0; i < out.value.size(); ++i) {
    if (inside.value[i] == 0) out.value[i] = value.value[0];
  }
  return out;
}

constexpr Definition kMovementDefinitions[] = {
    {"aten.t", t},
    {"aten.transpose", transpose},
    {"aten.swapaxes", transpose},
    {"aten.permute", permute},
    {"aten.movedim", movedim},
    {"aten.moveaxis", movedim},
    {"aten.numpy_T", reverse_dimensions},
    {"aten.mT", matrix_transpose},
    {"aten.view", view},
    {"aten.view.dtype", reinterpreted},
    {"aten.reshape", view},
    {"aten._unsafe_view", view},
    {"aten._reshape_alias", view},
    {"aten.view_as", view_as},
    {"aten.flatten", flatten},
    {"aten.unsqueeze", unsqueeze},
    {"aten.squeeze", squeeze},
    {"aten.expand", expand},
    {"aten.expand_as", expand_as},
    {"aten.as_strided", given},
    {"aten.detach", same},
    {"aten.alias", same},
    {"aten.clone", same},
    {"aten.contiguous", same},
    {"aten.lift_fresh", same},
    {"aten._to_copy", to_copy},
    {"aten.to", to_copy},
    {"aten.copy", copy},
    {"aten.slice", slice},
    {"aten.narrow", narrow},
    {"aten.select", select},
    {"aten.diagonal", diagonal},
    {"aten.diagonal_copy", diagonal},
    {"aten.diagonal_backward", diagonal_backward},
    {"aten.diag_embed", diag_embed},
    {"aten.unfold", unfold},
    {"aten.cat", cat},
    {"aten.concat", cat},
    {"aten.stack", stack},
    {"aten.split", split},
    {"aten.split_with_sizes", split},
    {"aten.unsafe_split", split},
    {"aten.unsafe_split_with_sizes", split},
    {"aten.chunk", chunk},
    {"aten.unsafe_chunk", chunk},
    {"aten.unbind", unbind},
    {"aten.flip", flip},
    {"aten.roll", roll},
    {"aten.repeat", repeat},
    {"aten.tril", tril},
    {"aten.triu", triu},
    {"aten.select_backward", select_backward},
    {"aten.slice_backward", slice_backward},
    {"aten.constant_pad_nd", constant_pad},
};

}  // namespace

std::span<const Definition> movement_definitions() { return kMovementDefinitions; }

}  // namespace twinrun::aten
