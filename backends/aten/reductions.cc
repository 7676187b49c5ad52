// Sums, means, variances, norms, extremes and cumulative sums.
#include <algorithm>

#include "backends/aten/definitions.h"

namespace twinrun::aten {
namespace {

bool whole(const Array& x, const Arguments& a) {
  return x.exact() && is_integer(a.view(0, "self").element);
}
// Sums of integers and truth values are exact.
Expected sum_over(const Arguments& a, const Dims& dims, bool keep) {
  const Array x = a.array(0, "self");
  Array out = sum(a.m, x, dims, keep);
  if (whole(x, a)) out.radius.clear();
  return out;
}
Expected sum_all(const Arguments& a) { return sum_over(a, {}, false); }
Expected sum_dims(const Arguments& a) {
  return sum_over(a, a.integers(1, "dim", {}), a.flag(2, "keepdim", false));
}
Expected mean_all(const Arguments& a) { return mean(a.m, a.array(0, "self"), {}); }
Expected mean_dims(const Arguments& a) {
  return mean(a.m, a.array(0, "self"), a.integers(1, "dim", {}), a.flag(2, "keepdim", false));
}

// The variance of x over dims; the sum of squares is divided by n - correction. One pass over x
// (E[x^2] - E[x]^2) cancels where the mean is large: its error is that of the sum of x^2, which the
// radius covers. Welford's updates and two passes are better.
Array variance(const Arithmetic& m, const Array& x, const Dims& dims, double correction,
               bool keep) {
  const Array center = mean(m, x, dims, true);
  const double n =
      center.size() == 0 ? 0 : static_cast<double>(x.size()) / static_cast<double>(center.size());
  const Array squares = map(
      m,
      [&](Estimate v, Estimate c) {
        const double d = v.value - c.value;
        return exactly(d * d);
      },
      x, center);
  const Array sizes = map(
      m, [](Estimate v) { return exactly(v.value * v.value); }, x);
  const Array s = sum(m, squares, dims, keep), total = sum(m, sizes, dims, keep);
  const double by = n - correction, relative = 2 * m.of_sum(static_cast<int64_t>(n)) + 8 * m.unit;
  return map(
      m,
      [&](Estimate v, Estimate most) {
        if (by <= 0) return Estimate{by == 0 && n > 1 ? kInfinity : std::nan(""), kInfinity};
        return m.more({v.value / by, relative * most.value / by}, 4 * m.unit);
      },
      s, total);
}
double correction_of(const Arguments& a, size_t position) {
  const Value* v = a.find(position, "correction");
  if (v == nullptr) return 1;
  return a.number(position, "correction", 1);
}
Array var_of(const Arguments& a) {
  return variance(a.m, a.array(0, "self"), a.integers(1, "dim", {}), correction_of(a, 99),
                  a.flag(99, "keepdim", false));
}
Expected var(const Arguments& a) { return var_of(a); }
Expected std_dev(const Arguments& a) {
  return map(
      a.m, [&](Estimate v) { return a.m.sqrt(v); }, var_of(a));
}
Expected var_mean(const Arguments& a) {
  Expected out = var_of(a);
  out.results.emplace_back(
      mean(a.m, a.array(0, "self"), a.integers(1, "dim", {}), a.flag(99, "keepdim", false)));
  return out;
}

Expected norm_of(const Arguments& a, double order, const Dims& dims, bool keep) {
  const Arithmetic& m = a.m;
  const Array x = a.array(0, "self");
  if (order == kInfinity) {
    return largest(m,
                   map(
                       m, [](Estimate v) { return exactly(std::fabs(v.value)); }, x),
                   dims, keep);
  }
  if (order == 1)
    return sum(m,
               map(
                   m, [](Estimate v) { return exactly(std::fabs(v.value)); }, x),
               dims, keep);
  if (order != 2) throw Undefined("a norm of another order than 1, 2 and infinity");
  const Array s = sum(m,
                      map(
                          m, [&](Estimate v) { return m.mul(v, v); }, x),
                      dims, keep);
  return map(
      m, [&](Estimate v) { return m.sqrt(v); }, s);
}
Expected vector_norm(const Arguments& a) {
  return norm_of(a, a.number(1, "ord", 2), a.integers(2, "dim", {}), a.flag(3, "keepdim", false));
}
Expected norm(const Arguments& a) { return norm_of(a, a.number(1, "ord", 2), {}, false); }

Expected extreme(const Arguments& a, double sign, bool indexed) {
  Array x = a.array(0, "self");
  for (double& v : x.value) v *= sign;
  const Dims dims = a.integers(1, "dim", {});
  Array best = largest(a.m, x, dims, a.flag(2, "keepdim", false));
  for (double& v : best.value) v *= sign;
  Expected out = best;
  if (indexed && !dims.empty()) {
    // The index must point at an element with the extreme value.
    const std::vector<int64_t> at = integers_of(a.result(1));
    const auto rank = static_cast<int64_t>(x.dims.size());
    const int64_t axis = axis_of(dims[0], rank);
    int64_t inner = 1;
    for (int64_t d = axis + 1; d < rank; ++d) inner *= x.dims[static_cast<size_t>(d)];
    const int64_t n = rank == 0 ? 1 : x.dims[static_cast<size_t>(axis)];
    for (size_t i = 0; i < at.size(); ++i) {
      const auto e = static_cast<int64_t>(i);
      const int64_t from = (e / inner * n + at[i]) * inner + e % inner;
      const bool fits = at[i] >= 0 && at[i] < n;
      const double found = fits ? sign * x.value[static_cast<size_t>(from)] : 0;
      if (!fits || (found != best.value[i] && best.value[i] == best.value[i])) {
        out.problem = "an index does not point at the extreme element";
        break;
      }
    }
    out.results.emplace_back(std::nullopt);
  }
  return out;
}
Expected max_all(const Arguments& a) { return extreme(a, 1, false); }
Expected min_all(const Arguments& a) { return extreme(a, -1, false); }
Expected max_dim(const Arguments& a) { return extreme(a, 1, true); }
Expected min_dim(const Arguments& a) { return extreme(a, -1, true); }
Expected arg_extreme(const Arguments& a, double sign) {
  Array x = a.array(0, "self");
  for (double& v : x.value) v *= sign;
  const Dims dims = a.integers(1, "dim", {});
  const Array best = largest(a.m, x, dims, false);
  const std::vector<int64_t> at = integers_of(a.result(0));
  const auto rank = static_cast<int64_t>(x.dims.size());
  const int64_t axis = dims.empty() ? 0 : axis_of(dims[0], rank);
  int64_t inner = 1, n = x.size();
  if (!dims.empty() && rank > 0) {
    n = x.dims[static_cast<size_t>(axis)];
    for (int64_t d = axis + 1; d < rank; ++d) inner *= x.dims[static_cast<size_t>(d)];
  }
  Expected out;
  for (size_t i = 0; i < at.size(); ++i) {
    const auto e = static_cast<int64_t>(i);
    const bool fits = at[i] >= 0 && at[i] < n;
    const double found =
        fits ? x.value[static_cast<size_t>((e / inner * n + at[i]) * inner + e % inner)] : 0;
    if (!fits || (found != best.value[i] && best.value[i] == best.value[i]))
      out.problem = "an index does not point at the extreme element";
  }
  return out;
}
Expected argmax(const Arguments& a) { return arg_extreme(a, 1); }
Expected argmin(const Arguments& a) { return arg_extreme(a, -1); }

Expected truth(const Arguments& a, bool of_all) {
  const Array x = a.array(0, "self");
  const Array flags = map(
      a.m, [&](Estimate v) { return exactly((v.value != 0) == of_all ? 0 : 1); }, x);
  Array out = largest(a.m, flags, a.integers(1, "dim", {}), a.flag(2, "keepdim", false));
  for (double& v : out.value) v = (v > 0) != of_all ? 1 : 0;
  out.radius.clear();
  return out;
}
Expected any(const Arguments& a) { return truth(a, false); }
Expected all(const Arguments& a) { return truth(a, true); }

Expected cumsum(const Arguments& a) {
  const Array x = a.array(0, "self");
  const auto rank = static_cast<int64_t>(x.dims.size());
  if (rank == 0) return x;
  const int64_t axis = axis_of(a.integer(1, "dim", 0), rank);
  int64_t inner = 1;
  for (int64_t d = axis + 1; d < rank; ++d) inner *= x.dims[static_cast<size_t>(d)];
  const int64_t n = x.dims[static_cast<size_t>(axis)];
  Array out = empty_array(x.dims);
  for (int64_t o = 0; n > 0 && o < x.size() / n; ++o) {
    double value = 0, size = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = (o / inner * n + i) * inner + o % inner;
      value += x.at(at).value;
      size += std::fabs(x.at(at).value);
      out.set(at, {value, a.m.of_sum(i + 1) * size});
    }
  }
  if (whole(x, a)) out.radius.clear();
  return out;
}
Expected logsumexp(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array x = a.array(0, "self");
  const Dims dims = a.integers(1, "dim", {});
  const bool keep = a.flag(2, "keepdim", false);
  const Array top = largest(m, x, dims, true);
  const Array e = map(
      m,
      [&](Estimate v, Estimate t) {
        if (!finite(t.value)) return Estimate{std::nan(""), kInfinity};
        return m.quick_exp(m.sub(v, t));
      },
      x, top);
  const Array s = sum(m, e, dims, keep), t = largest(m, x, dims, keep);
  return map(
      m, [&](Estimate p, Estimate q) { return m.add(m.log(p), q); }, s, t);
}

constexpr Definition kDefinitions[] = {
    {"aten.sum.default", sum_all},
    {"aten.sum.dim_IntList", sum_dims},
    {"aten.mean.default", mean_all},
    {"aten.mean.dim", mean_dims},
    {"aten.var.correction", var},
    {"aten.std.correction", std_dev},
    {"aten.var_mean.correction", var_mean},
    {"aten.linalg_vector_norm", vector_norm},
    {"aten.norm.Scalar", norm},
    {"aten.norm", norm},
    {"aten.max.default", max_all},
    {"aten.min.default", min_all},
    {"aten.max.dim", max_dim},
    {"aten.min.dim", min_dim},
    {"aten.amax", max_all},
    {"aten.amin", min_all},
    {"aten.argmax", argmax},
    {"aten.argmin", argmin},
    {"aten.any", any},
    {"aten.all", all},
    {"aten.cumsum", cumsum},
    {"aten.logsumexp", logsumexp},
};

}  // namespace

std::span<const Definition> reduction_definitions() { return kDefinitions; }

}  // namespace twinrun::aten
