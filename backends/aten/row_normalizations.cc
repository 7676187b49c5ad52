// Layer, group and root-mean-square normalisation, and their gradients.
#include <algorithm>
#include <utility>

#include "backends/aten/normalizing.h"
#include "backends/aten/totals.h"

namespace twinrun::aten {
namespace {

using namespace normalizing;  // NOLINT(google-build-using-namespace)

// ---- Layer, group and root-mean-square normalisation -------------------------------------------

struct NormalizedRows {
  Layout groups, weights;
  Dims dims;  // of the statistics
};
NormalizedRows rows_of(const Dims& dims, const Dims& shape) {
  const size_t rank = rows_rank(dims, shape);
  NormalizedRows r;
  r.dims = dims;
  for (size_t d = rank; d < dims.size(); ++d) r.dims[d] = 1;
  r.groups = {1, count(r.dims), count(shape)};
  r.weights = {count(r.dims), count(shape), 1};
  return r;
}
// Of an input without elements only the output's shape is defined.
Expected nothing(const Array& x, size_t results) {
  Expected e;
  e.results.resize(results);
  e.results[0] = filled(x.dims, 0);
  return e;
}
Expected layer_norm(const Arguments& a) {
  const Array x = a.array(0, "input");
  const NormalizedRows r = rows_of(x.dims, a.integers(1, "normalized_shape", {}));
  if (x.size() == 0) return nothing(x, 3);
  const Statistics s = statistics(a.m, x, r.groups, a.number(4, "eps", 1e-5), false);
  Expected e(apply(a.m, x, r.groups, s, factors(a.maybe(2, "weight"), 1, r.weights),
                   factors(a.maybe(3, "bias"), 0, r.weights)));
  e.results.emplace_back(array_from(s.mean, r.dims));
  e.results.emplace_back(array_from(s.inv, r.dims));
  return e;
}
Expected only_output(Expected e) {
  e.results.resize(1);
  return e;
}
Expected functional_layer_norm(const Arguments& a) { return only_output(layer_norm(a)); }
Expected layer_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  const Dims shape = a.integers(2, "normalized_shape", {});
  const NormalizedRows r = rows_of(b.x.dims, shape);
  if (b.x.size() == 0) throw Undefined("an input without elements");
  b.groups = r.groups, b.weights = r.weights;
  b.mean = estimates_of(a.array(3, "mean")), b.rstd = estimates_of(a.array(4, "rstd"));
  b.weight = a.maybe(5, "weight");
  b.weight_apart = false;
  // The CPU's kernel adds the rows' terms up in the input's type, half precision too.
  const Element type = a.view(1, "input").element;
  b.buffer = half_unit(type);
  Expected e = gradients(a.m, b, mask_of(a, 7, 3));
  for (size_t i = 1; i < 3; ++i) {
    if (e.results[i]) e.results[i]->dims = shape;
  }
  return e;
}

Expected group(const Arguments& a, int64_t groups, size_t weight_at, double eps) {
  const Array x = a.array(0, "input");
  const Layout channels = channels_of(x.dims);
  if (groups < 1 || channels.groups % groups != 0) throw Undefined("groups that do not divide");
  if (x.size() == 0) return nothing(x, 3);
  const Layout layout{1, channels.outer * groups, x.size() / (channels.outer * groups)};
  // The CPU's kernel for inputs whose channels come last sums x and x^2 in one pass.
  Statistics s = statistics(a.m, x, layout, eps, !a.view(0, "input").is_dense());
  // CUDA's kernel stores mean and factor in the input's type, and reads them again.
  const Element type = a.view(0, "input").element;
  if (a.m.gpu && is_half(type)) {
    for (Checked<Estimate>* part : {&s.mean, &s.inv})
      for (Estimate& e : *part) e = stored(e, type);
  }
  Expected e(apply(a.m, x, layout, s, factors(a.maybe(weight_at, "weight"), 1, channels),
                   factors(a.maybe(weight_at + 1, "bias"), 0, channels)));
  e.results.emplace_back(array_from(s.mean, {channels.outer, groups}));
  e.results.emplace_back(array_from(s.inv, {channels.outer, groups}));
  return e;
}
Expected group_norm(const Arguments& a) {
  return group(a, a.integer(6, "group", 1), 1, a.number(7, "eps", 1e-5));
}
Expected functional_group_norm(const Arguments& a) {
  return only_output(group(a, a.integer(1, "num_groups", 1), 2, a.number(4, "eps", 1e-5)));
}
Expected group_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  const int64_t groups = a.integer(8, "group", 1);
  b.weights = channels_of(b.x.dims);
  if (b.x.size() == 0) throw Undefined("an input without elements");
  if (groups < 1 || b.weights.groups % groups != 0) throw Undefined("groups that do not divide");
  b.groups = {1, b.weights.outer * groups, b.x.size() / (b.weights.outer * groups)};
  b.mean = estimates_of(a.array(2, "mean")), b.rstd = estimates_of(a.array(3, "rstd"));
  b.weight = a.maybe(4, "weight");
  return gradients(a.m, b, mask_of(a, 9, 3));
}

double rms_eps(const Arguments& a, size_t position) {
  if (a.has(position, "eps")) return a.number(position, "eps", 0);
  // Of half precision some versions take the input's epsilon, others binary32's.
  const Element type = a.view(0, "input").element;
  if (type == Element::kF32) return 0x1p-23;
  if (type == Element::kF64) return 0x1p-52;
  throw Undefined("half precision without eps");
}
Expected rms_norm(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array x = a.array(0, "input");
  const NormalizedRows r = rows_of(x.dims, a.integers(1, "normalized_shape", {}));
  const std::optional<Array> given = a.maybe(2, "weight");
  const double eps = rms_eps(a, 3);
  if (x.size() == 0) return nothing(x, 2);
  const Factors weight = factors(given, 1, r.weights);
  Checked<Estimate> inv(static_cast<size_t>(r.groups.groups));
  each(m, r.groups.groups, [&](int64_t g) {
    const auto at = [&](int64_t k) { return x.value[static_cast<size_t>(r.groups.at(g, k))]; };
    inv[static_cast<size_t>(g)] = inverse(m, mean_square(m, r.groups.size(), at), eps);
  });
  // Some versions store x * rstd in the input's type before they multiply by the weight.
  const Element type = a.view(0, "input").element;
  const bool twice = given.has_value() && (type == Element::kBF16 || type == Element::kF16);
  Array out = empty_array(x.dims);
  in_ranges(m, out.size(), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Estimate rstd = inv[static_cast<size_t>(r.groups.group_of(i))];
      Estimate y = m.mul(x.at(i), rstd);
      if (twice) y = stored(y, type);
      out.set(i, given ? m.more(Arithmetic::product(y, {weight.of(i), 0}), 2 * m.unit) : y);
    }
  });
  Expected e(std::move(out));
  e.results.emplace_back(array_from(inv, r.dims));
  return e;
}
Expected functional_rms_norm(const Arguments& a) { return only_output(rms_norm(a)); }
Expected rms_norm_backward(const Arguments& a) {
  Backward b;
  b.dy = a.array(0, "grad_out"), b.x = a.array(1, "input");
  const Dims shape = a.integers(2, "normalized_shape", {});
  const NormalizedRows r = rows_of(b.x.dims, shape);
  if (b.x.size() == 0) throw Undefined("an input without elements");
  b.groups = r.groups, b.weights = r.weights;
  b.rstd = estimates_of(a.array(3, "rstd"));
  b.mean.assign(b.rstd.size(), Estimate{0, 0});
  b.weight = a.maybe(4, "weight");
  b.centred = b.weight_apart = false;
  Expected e = gradients(a.m, b, mask_of(a, 5, 2));
  if (e.results[1]) e.results[1]->dims = shape;
  return e;
}

// v times g / |v|, and |v|, over all dimensions but the first or the last.
struct Directions {
  Array v, g;
  Dims others;
};
Directions directions_of(const Arguments& a, size_t first, size_t dim_at) {
  Directions d{a.array(first), a.array(first + 1), {}};
  const auto rank = static_cast<int64_t>(d.v.dims.size());
  const int64_t axis = axis_of(a.integer(dim_at, "dim", 0), rank);
  Dims dims(d.v.dims.size(), 1);
  if (d.v.dims.empty()) throw Undefined("a direction without dimensions");
  dims[static_cast<size_t>(axis)] = d.v.dims[static_cast<size_t>(axis)];
  if (d.g.size() != count(dims)) throw Undefined("lengths of another shape");
  d.g = reshaped(std::move(d.g), dims);
  for (int64_t i = 0; i < rank; ++i) {
    if (i != axis) d.others.push_back(i);
  }
  return d;
}
// The sum of products over the other dimensions. Kernels of half precision before PyTorch 2.0 round
// products and partial sums to it.
Array products_of(const Arithmetic& m, const Array& x, const Array& y, const Directions& d,
                  double half) {
  const Array products = map(
      m, [&](Estimate p, Estimate q) { return m.mul(p, q); }, x, y);
  if (d.others.empty()) return products;
  Array s = sum(m, products, d.others, true);
  if (half == 0) return s;
  Arithmetic shorter = m;
  shorter.unit = half;
  const double relative = shorter.of_sum(d.v.size() / std::max<int64_t>(d.g.size(), 1) + 1) + half;
  const Array sizes = sum(
      m,
      map(
          m, [](Estimate p, Estimate q) { return exactly(std::fabs(p.value * q.value)); }, x, y),
      d.others, true);
  return map(
      m,
      [&](Estimate e, Estimate size) {
        return Estimate{e.value, e.radius + relative * size.value};
      },
      s, sizes);
}
Expected weight_norm(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Element type = a.result(1).element;
  if (type != Element::kF32 && type != Element::kF64) throw Undefined("norms of half precision");
  const double half = half_unit(a.view(0).element);
  const Directions d = directions_of(a, 0, 2);
  const Array norm = map(
      m, [&](Estimate e) { return m.more(m.sqrt(e), half); }, products_of(m, d.v, d.v, d, half));
  Expected e = map(
      m,
      [&](Estimate v, Estimate g, Estimate n) {
        Estimate w = m.more(m.mul(v, m.div(g, n)), 2 * half);
        if (!finite(w.value)) w.radius = kInfinity;  // (v g) / 0, or v (g / 0)
        return w;
      },
      d.v, d.g, norm);
  e.results.emplace_back(norm);
  return e;
}
// With s the sum of dw v: g / |v| dw - g s / |v|^3 v, and s / |v|. Kernels may take reciprocals of
// the norm first: three, of 2.5 units each, in the second term, which has five products.
Expected weight_norm_backward(const Arguments& a) {
  const Arithmetic& m = a.m;
  const Array dw = a.array(0, "grad_w"), norm = a.array(3, "saved_norms");
  const Element type = a.view(3).element;
  if (type != Element::kF32 && type != Element::kF64) throw Undefined("norms of half precision");
  const double half = half_unit(a.view(1).element);
  const Directions d = directions_of(a, 1, 4);
  if (norm.size() != d.g.size()) throw Undefined("norms of another shape");
  const Array n = reshaped(norm, d.g.dims), s = products_of(m, dw, d.v, d, half);
  const auto by = [](Estimate x, Estimate y, Estimate of) {
    return Arithmetic::quotient(Arithmetic::product(x, y), of);
  };
  const Array first = map(
      m,
      [&](Estimate w, Estimate g, Estimate of) {
        return m.more(by(w, g, of), 5 * m.unit + 3 * half);
      },
      dw, d.g, n);
  const Array factor = map(
      m,
      [&](Estimate t, Estimate g, Estimate of) {
        const Estimate squared = exactly(of.value * of.value);
        return m.more(Arithmetic::quotient(by(t, g, of), squared), 13 * m.unit + 7 * half);
      },
      s, d.g, n);
  Expected e = map(
      m,
      [&](Estimate w, Estimate v, Estimate f, Estimate of) {
        Estimate r = m.sub(w, Arithmetic::product(v, f));
        // Powers of the norm may overflow, or be flushed.
        const bool plain = of.value > 0x1p-30 && of.value < 0x1p30;
        if (!finite(r.value) || !plain) r.radius = kInfinity;
        return r;
      },
      first, d.v, factor, n);
  Array dg = map(
      m,
      [&](Estimate t, Estimate of) {
        const Estimate r = m.more(m.div(t, of), half);
        return of.value == 0 ? Estimate{r.value, kInfinity} : r;
      },
      s, n);
  e.results.emplace_back(std::move(dg));
  return e;
}

constexpr Definition kRowNormalizationDefinitions[] = {
    {"aten.native_layer_norm", layer_norm},
    {"aten.native_layer_norm_backward", layer_norm_backward},
    {"aten.native_group_norm", group_norm},
    {"aten.native_group_norm_backward", group_norm_backward},
    {"aten._fused_rms_norm", rms_norm},
    {"aten._fused_rms_norm_backward", rms_norm_backward},
    {"aten._weight_norm_interface", weight_norm},
    {"aten._weight_norm_interface_backward", weight_norm_backward},
    {"torch.nn.functional.layer_norm", functional_layer_norm},
    {"torch.nn.functional.group_norm", functional_group_norm},
    {"torch.nn.functional.rms_norm", functional_rms_norm},
};

}  // namespace

std::span<const Definition> row_normalization_definitions() { return kRowNormalizationDefinitions; }

}  // namespace twinrun::aten
