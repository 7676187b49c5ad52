// What matrix products compute: value and bound of mm, bmm, mv, dot, addmm, baddbmm and addmv.
#include <algorithm>
#include <array>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

constexpr int64_t kMostParts = 8;

// A GPU may split a product of half precision over its terms, store the parts' sums in the type of
// the result and add them up in it: roundings of each part and of each addition.
double of_parts(const Arguments& a, const Array& left) {
  const Element type = a.result(0).element;
  const bool allowed = type == Element::kBF16  ? a.m.bfloat16_parts
                       : type == Element::kF16 ? a.m.float16_parts
                                               : false;
  if (!allowed || left.dims.empty()) return 0;
  const auto parts = static_cast<double>(std::min<int64_t>(kMostParts, left.dims.back()));
  return parts * half_unit(type);
}
Expected product(const Arguments& a) {
  const Array left = a.array(0, "self");
  return matmul(a.m, left, a.array(1, "mat2"), of_parts(a, left));
}

// A scalar of the call, which a kernel rounds to its arithmetic.
Estimate factor(const Arithmetic& m, double x) {
  return {x, m.holds(x) ? 0 : std::fabs(x) * m.unit};
}

// beta * input + alpha * (left right). A kernel may scale an operand or the product by alpha, and
// may begin the sum with the scaled input, which then takes part in every rounding of the sum.
Array added(const Arguments& a, const Array& bias, Array left, const Array& right,
            const Dims& dims) {
  const Arithmetic& m = a.m;
  if (a.call().op.find(".dtype") != std::string::npos)
    throw Undefined("a product with another type of result");
  // PyTorch's CPU kernels may round alpha and beta, what they scale, and the product to the type
  // of the result before they add: up to two roundings of half precision for each.
  const Element type = a.result(0).element;
  const double half = 2 * half_unit(type);
  // Below its normal numbers binary16 errs by half its smallest number.
  const double least = type == Element::kF16 ? 2 * 0x1p-25 : 0;
  const Estimate alpha = factor(m, a.number(4, "alpha", 1));
  const Estimate beta = factor(m, a.number(3, "beta", 1));
  const double relative = m.of_sum(left.dims.back() + 1);
  const auto kept = [&](Estimate e) {
    if (half == 0) return e;
    e = m.more(e, half);
    return Estimate{e.value, e.radius + least};
  };
  if (alpha.value != 1) {
    left = map(
        m, [&](Estimate x) { return kept(m.mul(alpha, x)); }, left);
  }
  const Array y = reshaped(matmul(m, left, right, of_parts(a, left)), dims);
  if (beta.value == 0) return y;  // The input is not read: its NaN does not count.
  return map(
      m,
      [&](Estimate p, Estimate x) {
        return m.add(kept(p), kept(m.more(m.mul(beta, x), relative)));
      },
      y, broadcast(bias, dims));
}
Expected addmm(const Arguments& a) {
  const Array left = a.array(1, "mat1"), right = a.array(2, "mat2");
  if (left.dims.size() < 2 || right.dims.size() < 2) throw Undefined("a product of vectors");
  Dims dims = left.dims;
  dims.back() = right.dims.back();
  return added(a, a.array(0, "self"), left, right, dims);
}
Expected addmv(const Arguments& a) {
  const Array left = a.array(1, "mat"), right = a.array(2, "vec");
  if (left.dims.size() != 2) throw Undefined("a matrix of another rank");
  return added(a, a.array(0, "self"), left, reshaped(right, {right.size(), 1}), {left.dims[0]});
}
Expected mv(const Arguments& a) {
  const Array left = a.array(0, "self"), right = a.array(1, "vec");
  if (left.dims.size() != 2) throw Undefined("a matrix of another rank");
  return reshaped(matmul(a.m, left, reshaped(right, {right.size(), 1})), {left.dims[0]});
}
Expected dot(const Arguments& a) {
  const Array x = a.array(0, "self"), y = a.array(1, "tensor");
  return reshaped(matmul(a.m, reshaped(x, {1, x.size()}), reshaped(y, {y.size(), 1})), {});
}

// Vectors count as one row or one column, which the result does not have.
Array general(const Arguments& a, Array left, Array right) {
  if (left.dims.empty() || right.dims.empty()) throw Undefined("a product with a scalar");
  const bool row = left.dims.size() == 1, column = right.dims.size() == 1;
  if (row) left = reshaped(std::move(left), {1, left.size()});
  if (column) right = reshaped(std::move(right), {right.size(), 1});
  Array y = matmul(a.m, left, right, of_parts(a, left));
  Dims dims = y.dims;
  if (column) dims.pop_back();
  if (row) dims.drop(column ? -1 : -2);
  return reshaped(std::move(y), dims);
}
Expected matmul_of_any_rank(const Arguments& a) {
  return general(a, a.array(0, "self"), a.array(1, "other"));
}
Expected linear(const Arguments& a) {
  Array x = a.array(0, "input");
  const Array w = a.array(1, "weight");
  if (w.dims.size() != 2 || x.dims.empty()) throw Undefined("weights of another rank");
  const Array right = permuted(w, {1, 0});
  if (!a.has(2, "bias")) return general(a, std::move(x), right);
  Dims dims = x.dims;
  dims.back() = w.dims[0];
  const int64_t rows = x.dims.back() == 0 ? 0 : x.size() / x.dims.back();
  Array y = added(a, a.array(2, "bias"), reshaped(std::move(x), {rows, w.dims[1]}), right,
                  {rows, w.dims[0]});
  return reshaped(std::move(y), dims);
}

// Products of groups: offs are the ends of the groups, along the rows of the first matrix, the columns
// of the second, or the terms of both. What belongs to no group is not initialised.
Expected grouped(const Arguments& a) {
  const Array left = a.array(0, "self"), right = a.array(1, "mat2");
  if (a.has(3, "bias")) throw Undefined("products of groups with a bias");
  const size_t ra = left.dims.size(), rb = right.dims.size();
  if (ra < 2 || ra > 3 || rb < 2 || rb > 3) throw Undefined("groups of another rank");
  const double added = of_parts(a, left);
  if (ra == 3 && rb == 3) return matmul(a.m, left, right, added);
  const Checked<int64_t> ends = integers_of(a.view(2, "offs"));
  const auto groups = static_cast<int64_t>(ends.size());
  const Dims dims = a.result(0).dims;
  const bool terms = ra == 2 && rb == 2;
  take_steps(0x1p10 * static_cast<double>(groups));  // each makes several arrays
  if ((ra == 3 ? left.dims[0] : rb == 3 ? right.dims[0] : groups) != groups)
    throw Undefined("groups of another number");
  Array out = filled(dims, 0);
  out.radius = Plane(out.value.size(), kInfinity);
  const auto matrix = [](const Array& x, int64_t g) {
    return reshaped(sliced(x, 0, g, g + 1), {x.dims[1], x.dims[2]});
  };
  for (int64_t g = 0, begin = 0; g < groups; ++g) {
    const int64_t end = ends[static_cast<size_t>(g)];
    const int64_t most = ra == 3 ? right.dims.back() : terms ? left.dims[1] : left.dims[0];
    if (end < begin || end > most) throw Undefined("ends of groups out of range");
    const Array part =
        terms     ? matmul(a.m, sliced(left, 1, begin, end), sliced(right, 0, begin, end), added)
        : ra == 3 ? matmul(a.m, matrix(left, g), sliced(right, 1, begin, end), added)
                  : matmul(a.m, sliced(left, 0, begin, end), matrix(right, g), added);
    const int64_t columns = part.dims[1];
    if (dims.size() != (terms ? 3U : 2U) || (terms && count(dims) != groups * part.size()) ||
        (!terms && dims[1] != (ra == 3 ? right.dims[1] : columns))) {
      throw Undefined("products of groups of another shape");
    }
    for (int64_t i = 0; i < part.size(); ++i) {
      const int64_t row = i / columns, column = i % columns;
      out.set(terms     ? g * part.size() + i
              : ra == 3 ? row * dims[1] + begin + column
                        : (begin + row) * dims[1] + column,
              part.at(i));
    }
    begin = end;
  }
  return out;
}

// The product of three tensors, summed over dimensions; each is given dimensions of size 1 first.
// Kernels sum the product of the first two before they multiply by the third, and store both sums
// in the type of the result; where the dimension `unroll` is summed they add such results up.
Expected trilinear(const Arguments& a) {
  const Arithmetic& m = a.m;
  std::array<Array, 3> x;
  std::array<Dims, 3> strides;
  Dims all;
  const Dims summed = a.integers(6, "sumdim", {});
  for (size_t i = 0; i < 3; ++i) {
    x[i] = a.array(i);
    Dims added = a.integers(3 + i, {}, {});
    std::ranges::sort(added);
    for (const int64_t d : added) {
      if (d < 0 || d > std::ssize(x[i].dims)) throw Undefined("a dimension is out of range");
      x[i].dims.put(d, 1);
    }
    all = i == 0 ? x[i].dims : broadcast_dims(all, x[i].dims);
  }
  const auto rank = static_cast<int64_t>(all.size());
  for (size_t i = 0; i < 3; ++i) {
    if (std::ssize(x[i].dims) != rank) throw Undefined("factors of different ranks");
    strides[i] = Dims(all.size(), 0);
    int64_t step = 1;
    for (size_t d = all.size(); d-- > 0; step *= x[i].dims[d])
      strides[i][d] = x[i].dims[d] == 1 ? 0 : step;
  }
  Dims kept, inner;
  for (int64_t d = 0; d < rank; ++d)
    (std::ranges::find(summed, d) == summed.end() ? kept : inner).push_back(d);
  // The places of the three factors at step n over the dimensions `over`.
  const auto places = [&](int64_t n, const Dims& over) {
    std::array<int64_t, 3> at{};
    for (size_t k = over.size(); k-- > 0;) {
      const auto d = static_cast<size_t>(over[k]);
      for (size_t i = 0; i < 3; ++i) at[i] += n % all[d] * strides[i][d];
      n /= all[d];
    }
    return at;
  };
  Dims dims, terms_of;
  for (const int64_t d : kept) dims.push_back(all[static_cast<size_t>(d)]);
  for (const int64_t d : inner) terms_of.push_back(all[static_cast<size_t>(d)]);
  const int64_t terms = allowed_count(terms_of);
  Checked<std::array<int64_t, 3>> steps;
  for (int64_t n = 0; n < terms; ++n) steps.push_back(places(n, inner));
  const int64_t unroll = a.integer(7, "unroll_dim", 1);
  const bool adds = std::ranges::find(summed, unroll) != summed.end();
  const Element type = a.result(0).element;
  const double half = half_unit(type);
  const double parts = 3 + (adds ? static_cast<double>(all[static_cast<size_t>(unroll)]) : 0);
  const double relative = m.of_products(terms + 1, m.operand) + 3 * m.unit + parts * half +
                          2 * m.operand + 5 * m.operand * m.operand;
  if (type == Element::kF16) throw Undefined("a product of three tensors of binary16");
  Array out = empty_array(dims);
  take_steps(kStepsOfOne * static_cast<double>(out.size()) * static_cast<double>(terms));
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; ++n) {
      const std::array<int64_t, 3> first = places(n, kept);
      double value = 0, size = 0;
      for (const auto& step : steps) {
        double v = 1;
        for (size_t i = 0; i < 3; ++i) v *= x[i].value[static_cast<size_t>(first[i] + step[i])];
        value += v;
        size += std::fabs(v);
      }
      // Whether infinity times 0 is met depends on the order; a part may overflow or be flushed.
      Estimate e{value, relative * size * oracle::kOutward};
      if (!finite(value) || !(size < 0x1p96)) e.radius = kInfinity;
      if (size > 0 && size < 0x1p-64) e.radius = kInfinity;
      out.set(n, e);
    }
  });
  return out;
}

constexpr Definition kTable[] = {
    {"aten.mm", product},    {"aten.bmm", product},
    {"aten.mv", mv},         {"aten.dot", dot},
    {"aten.vdot", dot},      {"aten._trilinear", trilinear},
    {"aten.addmm", addmm},   {"aten.baddbmm", addmm},
    {"aten.addmv", addmv},   {"aten.matmul", matmul_of_any_rank},
    {"aten.linear", linear}, {"aten._grouped_mm", grouped},
};

}  // namespace

std::span<const Definition> product_definitions() { return kTable; }

}  // namespace twinrun::aten
