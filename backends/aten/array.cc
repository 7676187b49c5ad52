// Arrays of estimates: broadcasting, moves, sums and matrix products.
#include "backends/aten/array.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "backends/aten/definitions.h"
#include "program/ops/graph.h"

namespace twinrun::aten {
namespace {

Dims strides_of(const Dims& dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

// Copies the elements of x at `strides` (in elements of x, one per dimension of the result).
Array strided(const Array& x, Dims dims, const Dims& strides, int64_t first = 0) {
  Array out = empty_array(std::move(dims), x.exact());
  if (out.size() == 0) return out;
  const size_t rank = out.dims.size();
  const int64_t run = rank == 0 ? 1 : out.dims[rank - 1];
  const int64_t step = rank == 0 ? 0 : strides[rank - 1];
  Checked<int64_t> index(rank, 0);
  int64_t from = first;
  for (int64_t to = 0; to < out.size(); to += run) {
    for (int64_t i = 0; i < run; ++i) {
      const auto u = static_cast<size_t>(to + i), v = static_cast<size_t>(from + i * step);
      out.value[u] = x.value[v];
      if (!x.exact()) out.radius[u] = x.radius[v];
    }
    for (size_t d = rank - (rank > 0); d-- > 0;) {
      from += strides[d];
      if (++index[d] < out.dims[d]) break;
      from -= strides[d] * out.dims[d];
      index[d] = 0;
    }
  }
  return out;
}

// The dimensions of x as [outer, reduced] after the reduced ones were moved to the end.
struct Reduction {
  Array moved;
  int64_t outer = 1, inner = 1;
  Dims dims;
};
Reduction reduction_of(const Array& x, const Dims& dims, bool keep) {
  const auto rank = static_cast<int64_t>(x.dims.size());
  Checked<bool> gone(x.dims.size(), dims.empty());
  for (const int64_t d : dims) gone[static_cast<size_t>(axis_of(d, rank))] = true;
  Dims order, last;
  Reduction r;
  for (int64_t d = 0; d < rank; ++d) {
    const auto u = static_cast<size_t>(d);
    (gone[u] ? last : order).push_back(d);
    (gone[u] ? r.inner : r.outer) *= x.dims[u];
  }
  const bool in_place = std::ranges::is_sorted(last) &&
                        (last.empty() || order.empty() || order.back() < last.front());
  order.insert(order.end(), last.begin(), last.end());
  if (!in_place) r.moved = permuted(x, order);
  r.dims = reduced_dims(x.dims, dims, keep);
  return r;
}

}  // namespace

int64_t count(const Dims& dims) {
  int64_t n = 1;
  bool none = false;
  for (const int64_t d : dims) {
    none = none || d == 0;
    if (d < 0 || __builtin_mul_overflow(n, std::max<int64_t>(d, 1), &n)) beyond_the_end();
  }
  return none ? 0 : n;
}

namespace {
thread_local int64_t most_elements = std::numeric_limits<int64_t>::max();
thread_local double steps_left = std::numeric_limits<double>::max();
}  // namespace

int64_t allowed_count(const Dims& dims) {
  const int64_t n = count(dims);
  if (n > most_elements)
    throw Undefined(fmt::format("it needs {} numbers at once, for what was recorded at most {}", n,
                                most_elements));
  return n;
}

void take_steps(double steps) {
  if (steps > steps_left)
    throw Undefined(fmt::format("it takes {:.3g} steps, too many for what was recorded", steps));
  steps_left -= steps;
}

ArraysOfAtMost::ArraysOfAtMost(int64_t elements)
    : before_(most_elements), steps_before_(steps_left) {
  most_elements = std::min(before_, elements);
  // Of 256 elements for each that is recorded (most_elements_for) this is the square of what is
  // recorded, and 2^28 where that is little.
  const auto most = static_cast<double>(elements);
  steps_ = steps_left = std::min(steps_before_, most * most * 0x1p-16);
}
ArraysOfAtMost::~ArraysOfAtMost() {
  most_elements = before_;
  steps_left = steps_before_ - (steps_ - steps_left);
}

Array empty_array(Dims dims, bool exact) {
  const auto n = static_cast<size_t>(allowed_count(dims));
  return {std::move(dims), Plane(n), exact ? Plane() : Plane(n)};
}
Array filled(Dims dims, double value) {
  const auto n = static_cast<size_t>(allowed_count(dims));
  return {std::move(dims), Plane(n, value), {}};
}
Array scalar(double value) { return filled({}, value); }

int64_t axis_of(int64_t dim, int64_t rank) {
  const int64_t axis = dim < 0 ? dim + std::max<int64_t>(rank, 1) : dim;
  if (axis < 0 || axis >= std::max<int64_t>(rank, 1))
    throw Undefined("a dimension is out of range");
  return axis;
}

Dims broadcast_dims(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()));
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
    const int64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) throw Undefined("shapes that do not broadcast");
    out[out.size() - 1 - i] = x == 1 ? y : x;
  }
  return out;
}

Array broadcast(const Array& x, const Dims& dims) {
  const Dims own = strides_of(x.dims);
  Dims strides(dims.size(), 0);
  if (x.dims.size() > dims.size()) throw Undefined("shapes that do not broadcast");
  const size_t lead = dims.size() - x.dims.size();
  for (size_t i = 0; i < x.dims.size(); ++i) {
    if (x.dims[i] != dims[lead + i] && x.dims[i] != 1)
      throw Undefined("shapes that do not broadcast");
    strides[lead + i] = x.dims[i] == 1 ? 0 : own[i];
  }
  return strided(x, dims, strides);
}

void in_ranges(const Arithmetic& m, int64_t n, const std::function<void(int64_t, int64_t)>& f) {
  constexpr int64_t kPiece = 1 << 15;
  const int64_t pieces = (n + kPiece - 1) / kPiece;
  if (m.pool == nullptr || pieces < 2) {
    if (n > 0) f(0, n);
    return;
  }
  m.pool->parallel_for(pieces, [&](int64_t p) { f(p * kPiece, std::min(n, (p + 1) * kPiece)); });
}

Array reshaped(Array x, Dims dims) {
  if (count(dims) != x.size()) throw Undefined("a reshape to another number of elements");
  x.dims = std::move(dims);
  return x;
}

Array permuted(const Array& x, const Dims& order) {
  const Dims own = strides_of(x.dims);
  Dims dims, strides;
  for (const int64_t d : order) {
    dims.push_back(x.dims[static_cast<size_t>(d)]);
    strides.push_back(own[static_cast<size_t>(d)]);
  }
  return strided(x, std::move(dims), strides);
}

Array sliced(const Array& x, int64_t axis, int64_t begin, int64_t end, int64_t step) {
  const auto rank = static_cast<int64_t>(x.dims.size());
  const auto a = static_cast<size_t>(axis_of(axis, rank));
  if (rank == 0) throw Undefined("a slice of a scalar");
  const int64_t n = x.dims[a];
  if (begin < 0) begin += n;
  if (end < 0) end += n;
  begin = std::clamp<int64_t>(begin, 0, n);
  end = std::clamp<int64_t>(end, begin, n);
  Dims dims = x.dims, strides = strides_of(x.dims);
  dims[a] = quotient(end - begin + step - 1, step);
  const int64_t first = begin * strides[a];
  strides[a] *= step;
  return strided(x, std::move(dims), strides, first);
}

Array concatenated(const Checked<Array>& parts, int64_t axis) {
  // A one-dimensional tensor without elements counts as nothing, of whatever rank the others are.
  Checked<const Array*> real;
  for (const Array& part : parts) {
    if (part.dims.size() != 1 || part.dims[0] != 0) real.push_back(&part);
  }
  if (real.empty()) return parts.empty() ? filled({0}, 0) : parts.front();
  const auto a = static_cast<size_t>(axis_of(axis, static_cast<int64_t>(real[0]->dims.size())));
  Dims dims = real[0]->dims;
  dims[a] = 0;
  bool exact = true;
  for (const Array* part : real) {
    if (part->dims.size() != dims.size()) throw Undefined("a concatenation of different ranks");
    dims[a] += part->dims[a];
    exact = exact && part->exact();
  }
  Array out = empty_array(dims, exact);
  const int64_t outer = count(dims.part(0, static_cast<int64_t>(a)));
  int64_t to = 0;
  for (int64_t o = 0; o < outer; ++o) {
    for (const Array* part : real) {
      const int64_t run = outer == 0 ? 0 : part->size() / outer;
      if (to + run > out.size()) throw Undefined("a concatenation of shapes that do not fit");
      for (int64_t i = 0; i < run; ++i) {
        const Estimate e = part->at(o * run + i);
        out.value[static_cast<size_t>(to + i)] = e.value;
        if (!exact) out.radius[static_cast<size_t>(to + i)] = e.radius;
      }
      to += run;
    }
  }
  return out;
}

Array gathered(const Array& x, const Checked<int64_t>& index, Dims dims) {
  Array out = empty_array(std::move(dims), x.exact());
  if (out.size() != static_cast<int64_t>(index.size())) throw Undefined("an index of another size");
  for (size_t i = 0; i < index.size(); ++i) {
    const int64_t from = index[i];
    if (from >= x.size()) throw Undefined("an index out of range");
    out.value[i] = from < 0 ? 0.0 : x.value[static_cast<size_t>(from)];
    if (!x.exact()) out.radius[i] = from < 0 ? 0.0 : x.radius[static_cast<size_t>(from)];
  }
  return out;
}

Dims reduced_dims(const Dims& of, const Dims& dims, bool keep) {
  Checked<bool> gone(of.size(), dims.empty());
  for (const int64_t d : dims) {
    if (of.empty()) break;
    gone[static_cast<size_t>(axis_of(d, static_cast<int64_t>(of.size())))] = true;
  }
  Dims out;
  for (size_t i = 0; i < of.size(); ++i) {
    if (!gone[i]) out.push_back(of[i]);
    if (gone[i] && keep) out.push_back(1);
  }
  return out;
}

Array sum(const Arithmetic& m, const Array& x, Dims dims, bool keep) {
  if (x.dims.empty()) return x;
  const Reduction r = reduction_of(x, dims, keep);
  const Array& from = r.moved.dims.empty() ? x : r.moved;
  Array out = empty_array(r.dims);
  const double independent = m.of_sum(r.inner), chained = m.of_sum(r.inner, true);
  // Pieces of about 32768 elements, whose number depends on the shape alone.
  const int64_t rows = std::max<int64_t>(1, (int64_t{1} << 15) / std::max<int64_t>(r.inner, 1));
  const int64_t pieces = (r.outer + rows - 1) / rows;
  const auto one = [&](int64_t o) {
    double value = 0, size = 0, radius = 0;
    Equal equal;
    for (int64_t i = o * r.inner; i < (o + 1) * r.inner; ++i) {
      const Estimate e = from.at(i);
      equal.add(e.value);
      value += e.value;
      size += std::fabs(e.value);
      radius += e.radius;
    }
    if (r.inner == 1 && radius == 0) return out.set(o, {value, 0});
    if (finite(value) && !(size + radius < m.overflow)) return out.set(o, {value, kInfinity});
    Estimate e{value, radius + (equal ? chained : independent) * (size + radius)};
    // Any number of terms may be flushed.
    if (size > 0 && size < m.smallest * static_cast<double>(r.inner))
      e.radius += m.smallest * static_cast<double>(r.inner);
    if (!finite(value)) e.radius = radius < kInfinity ? 0 : kInfinity;
    out.set(o, e);
  };
  const auto piece = [&](int64_t p) {
    for (int64_t o = p * rows; o < std::min(r.outer, (p + 1) * rows); ++o) one(o);
  };
  if (m.pool != nullptr && pieces > 1) {
    m.pool->parallel_for(pieces, piece);
  } else {
    for (int64_t p = 0; p < pieces; ++p) piece(p);
  }
  return out;
}

Array mean(const Arithmetic& m, const Array& x, Dims dims, bool keep) {
  Array s = sum(m, x, std::move(dims), keep);
  const double n =
      s.size() == 0 ? 0 : static_cast<double>(x.size()) / static_cast<double>(s.size());
  return map(
      m, [&](Estimate e) { return m.div(e, exactly(n)); }, s);
}

Array largest(const Arithmetic& m, const Array& x, Dims dims, bool keep) {
  if (x.dims.empty()) return x;
  const Reduction r = reduction_of(x, dims, keep);
  const Array& from = r.moved.dims.empty() ? x : r.moved;
  Array out = empty_array(r.dims, x.exact());
  in_ranges(m, r.outer, [&](int64_t begin, int64_t end) {
    for (int64_t o = begin; o < end; ++o) {
      Estimate best{-kInfinity, 0};
      for (int64_t i = o * r.inner; i < (o + 1) * r.inner; ++i)
        best = Arithmetic::max(best, from.at(i));
      out.value[static_cast<size_t>(o)] = best.value;
      if (!x.exact()) out.radius[static_cast<size_t>(o)] = best.radius;
    }
  });
  return out;
}

Array matmul(const Arithmetic& m, const Array& a, const Array& b, double added) {
  const size_t ra = a.dims.size(), rb = b.dims.size();
  if (ra < 2 || rb < 2) throw Undefined("a product of arrays with fewer than two dimensions");
  const int64_t rows = a.dims[ra - 2], k = a.dims[ra - 1], columns = b.dims[rb - 1];
  if (b.dims[rb - 2] != k) throw Undefined("a product of shapes that do not fit");
  const Dims lead_a = a.dims.part(0, -2), lead_b = b.dims.part(0, -2);
  const Dims lead = broadcast_dims(lead_a, lead_b);
  const auto whole = [&](const Array& x, const Dims& own) -> Array {
    Dims dims = lead;
    dims.append(x.dims.part(-2));
    return own == lead ? x : broadcast(x, dims);
  };
  const Array left = whole(a, lead_a), right = whole(b, lead_b);
  Dims dims = lead;
  dims.push_back(rows);
  dims.push_back(columns);
  Array out = empty_array(dims);
  // Each of the products takes some memory of its own.
  take_steps(static_cast<double>(count(lead)) * 0x1p11 +
             static_cast<double>(out.size()) * static_cast<double>(k));
  oracle::pin_blocking();
  oracle::Product product;
  product.m = rows, product.n = columns, product.k = k;
  // Both operands may have been rounded where the user allowed that.
  const double relative = m.of_products(k + 1, m.operand) + added;
  const double lost = static_cast<double>(k) * m.smallest;
  const int64_t stacks = count(lead), na = rows * k, nb = k * columns, nc = rows * columns;
  const auto one = [&](int64_t s, ThreadPool* pool) {
    const auto operand = [](const Array& x, int64_t first, int64_t n, int how) {
      oracle::Operand o;
      o.parts.emplace_back(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; ++i) {
        const Estimate e = x.at(first + i);
        o.parts[0][static_cast<size_t>(i)] =
            how == 0 ? e.value : std::fabs(e.value) + (how == 2 ? e.radius : 0);
      }
      return o;
    };
    const oracle::Sums sums = oracle::evaluate(product, operand(left, s * na, na, 0),
                                               operand(right, s * nb, nb, 0), pool, true);
    oracle::Sums wide;
    const bool exact = left.exact() && right.exact();
    if (!exact) {
      wide = oracle::evaluate(product, operand(left, s * na, na, 2), operand(right, s * nb, nb, 2),
                              pool, false);
    }
    for (int64_t i = 0; i < nc; ++i) {
      const auto u = static_cast<size_t>(i);
      const double value = sums.head[u], size = exact ? sums.magnitude[u] : wide.head[u];
      const double given = exact ? 0 : std::fmax(0.0, size - sums.magnitude[u]);
      Estimate e{value, given + relative * size};
      if (size > 0 && size < 0x1p-90) e.radius += lost;
      if (!finite(value)) {
        e.radius = exact ? 0 : kInfinity;  // what is open may have made it so
      } else if (!(size < m.overflow)) {
        e.radius = kInfinity;
      }
      out.set(s * nc + i, e);
    }
  };
  if (stacks == 1) {
    one(0, m.pool);
  } else if (m.pool != nullptr) {
    m.pool->parallel_for(stacks, [&](int64_t s) { one(s, nullptr); });
  } else {
    for (int64_t s = 0; s < stacks; ++s) one(s, nullptr);
  }
  return out;
}

}  // namespace twinrun::aten
